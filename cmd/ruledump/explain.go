package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newExplainCommand() *cobra.Command {
	var input input
	var from, to, iif string
	cmd := &cobra.Command{
		Use:   "explain --from ADDRESS --to ADDRESS:PORT/PROTOCOL",
		Short: "Say what becomes of a packet, and by which rules",
		Long: `explain walks the first packet of a connection through the proxy's tables and prints
everything that can become of it, each with the rules that lead there and the elements
that they find. Nothing is sent.

The tables are those that the kernel of this network namespace holds (which needs
CAP_NET_ADMIN) or, with --manifests and --node, those that the proxy on that node would
program. A packet from an address of the node's own is one of a process on the node;
with --manifests these are the Node's addresses alone. Rules of other programs and
routes that lead nowhere are not looked at.`,
		Example: `  # What does a pod reach at a ClusterIP, on this node, at this moment?
  ruledump explain --from 10.244.1.5 --to 10.96.0.10:80

  # Does a client that comes in by eth0 keep its address at a node port?
  ruledump explain --from 198.51.100.7 --iif eth0 --to 192.168.0.1:30080/tcp

  # What would node-1 do, given these manifests?
  ruledump explain --manifests objects/ --node node-1 --from fd00::1 --to '[fd00:10:96::a]:53/udp'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			packet, err := parsePacket(from, to)
			if err != nil {
				return err
			}
			tables, host, err := input.situation(cmd)
			if err != nil {
				return err
			}
			packet.Local = packet.Source.Addr().IsLoopback() || slices.Contains(host.Addresses, packet.Source.Addr())
			packet.Interface = iif
			fates, err := evaluator.New(tables, host).Fates(packet)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n%s", packet, fates)
			return err
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "source: ADDRESS or ADDRESS:PORT")
	cmd.Flags().StringVar(&to, "to", "", "destination: ADDRESS:PORT/tcp (or udp, sctp; tcp if left out), or ADDRESS/icmp")
	cmd.Flags().StringVar(&iif, "iif", "", "interface that the packet comes in by; needed only if a rule asks for it")
	input.addFlags(cmd)
	for _, required := range []string{"from", "to"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err)
		}
	}
	cmd.MarkFlagsRequiredTogether("manifests", "node")
	return cmd
}

// situation returns the tables to look at and the host that they are on.
func (i *input) situation(cmd *cobra.Command) ([]*nft.Table, evaluator.Host, error) {
	if i.manifests == "" {
		return liveSituation()
	}
	tables, objects, err := i.compile(cmd.ErrOrStderr())
	if err != nil {
		return nil, evaluator.Host{}, err
	}
	addresses, err := nodeAddresses(objects, i.node)
	return tables, evaluator.Host{Addresses: addresses}, err
}

func nodeAddresses(objects *manifests.Objects, name string) ([]netip.Addr, error) {
	for _, n := range objects.Nodes {
		if n.Name == name {
			return tracker.ParseNode(n).IPs, nil
		}
	}
	return nil, fmt.Errorf("the manifests have no Node %s", name)
}

// liveSituation reads the tables of the kernel, and what packets taught their dynamic maps.
func liveSituation() ([]*nft.Table, evaluator.Host, error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return nil, evaluator.Host{}, err
	}
	defer conn.Close()
	tables, err := readTables(conn)
	if err != nil {
		return nil, evaluator.Host{}, err
	}
	if err := readLearned(conn, tables); err != nil {
		return nil, evaluator.Host{}, err
	}
	addresses, err := ownAddresses()
	return tables, evaluator.Host{Addresses: addresses}, err
}

func readLearned(conn *nft.Conn, tables []*nft.Table) error {
	for _, t := range tables {
		for _, s := range t.Sets {
			if !s.Dynamic {
				continue
			}
			elements, err := conn.ReadElements(t.Family, t.Name, s)
			if err != nil {
				return err
			}
			for _, e := range elements {
				s.Put(e)
			}
		}
	}
	return nil
}

// ownAddresses returns the addresses of this network namespace.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this network namespace: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr().Unmap())
		}
	}
	return out, nil
}

// parsePacket reads the values of --from and --to.
func parsePacket(from, to string) (evaluator.Packet, error) {
	target, protocol, named := strings.Cut(to, "/")
	if !named {
		protocol = "tcp"
	}
	destination, err := parseAddrPort(target)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--to: %w", err)
	}
	source, err := parseAddrPort(from)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--from: %w", err)
	}
	if source.Addr().Is4() != destination.Addr().Is4() {
		return evaluator.Packet{}, fmt.Errorf("--from %s and --to %s are of different IP families", from, to)
	}
	number, err := protocolNumber(protocol, destination)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--to: %w", err)
	}
	return evaluator.Packet{Source: source, Destination: destination, Protocol: number}, nil
}

// parseAddrPort reads an address with or without a port, which is 0 then.
func parseAddrPort(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	parsed, err := netip.ParseAddrPort(text)
	if err != nil {
		return parsed, fmt.Errorf("%q is neither an IP address nor one with a port, such as 10.96.0.10:80 or [fd00::1]:80", text)
	}
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port()), nil
}

func protocolNumber(name string, destination netip.AddrPort) (uint8, error) {
	icmp := uint8(unix.IPPROTO_ICMP)
	if destination.Addr().Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	numbers := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP, "icmp": icmp}
	number, ok := numbers[strings.ToLower(name)]
	switch {
	case !ok:
		return 0, fmt.Errorf("protocol %q is not tcp, udp, sctp or icmp", name)
	case number == icmp && destination.Port() != 0:
		return 0, errors.New("icmp has no ports")
	case number != icmp && destination.Port() == 0:
		return 0, fmt.Errorf("%s needs a port, as in %s", name, netip.AddrPortFrom(destination.Addr(), 80))
	}
	return number, nil
}
