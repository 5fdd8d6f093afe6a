package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump/explain"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newExplainCommand() *cobra.Command {
	var where source
	var from, to, iif string
	format := newFormat("text", "json", "yaml")
	cmd := &cobra.Command{
		Use:   "explain --from ADDRESS[%INTERFACE] --to ADDRESS:PORT[/PROTOCOL]",
		Short: "Say what becomes of a packet, by which rules, and why",
		Long: `explain walks the first packet of a connection through the proxy's rules and prints
everything that can become of it: why, in a sentence, and the rules that lead there with
the elements that they find, hook by hook. Nothing is sent.

A packet from an address of the node's own is one of a process on the node; with compiled
rules these are the Node's addresses alone. Rules of other programs and routes that lead
nowhere are not looked at.

With the rules of the kernel it also says where session affinity keeps the client, and
which connections conntrack knows of the client to the address: those go where they were
sent first, whatever the rules say now. It prints the state of each, and marks those whose
server is no endpoint by these rules.`,
		Example: `  # What does a pod reach at a ClusterIP, on this node, at this moment?
  ruledump explain --from 10.244.1.5 --to 10.96.0.10:80

  # Does a client that comes in by eth0 keep its address at a node port?
  ruledump explain --from 198.51.100.7%eth0 --to 192.168.0.1:30080/tcp

  # What would node-1 do, given these manifests?
  ruledump explain --manifests objects/ --node node-1 --from fd00::1 --to '[fd00:10:96::a]:53/udp'`,
		Args: flagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			packet, err := parsePacket(from, to, iif)
			if err != nil {
				return err
			}
			s, err := where.open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			e, err := explain.Explain(s.Snapshot, packet)
			if err == nil && s.conn != nil {
				err = addConnections(cmd, e)
			}
			if err != nil {
				return err
			}
			if format.value != "text" {
				return writeValue(cmd.OutOrStdout(), format.value, e)
			}
			_, err = e.WriteTo(cmd.OutOrStdout())
			return err
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "source: ADDRESS or ADDRESS:PORT, and perhaps %INTERFACE that the packet comes in by, needed only if a rule asks for it")
	cmd.Flags().StringVar(&to, "to", "", "destination: ADDRESS:PORT/tcp (or udp, sctp; tcp if left out), or ADDRESS/icmp")
	cmd.Flags().StringVar(&iif, "iif", "", "interface that the packet comes in by, as in --from")
	where.addTo(cmd)
	format.addTo(cmd)
	for _, required := range []string{"from", "to"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err)
		}
	}
	return cmd
}

// addConnections looks up what the kernel's connection tracking knows.
func addConnections(cmd *cobra.Command, e *explain.Explanation) error {
	conn, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	return e.AddConnections(cmd.Context(), conn)
}

// flagsOnly refuses a client and an address without their flags.
func flagsOnly(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return nil
	case 2:
		return fmt.Errorf("explain takes its addresses by flags: did you mean --from %s --to %s?", args[0], args[1])
	}
	return fmt.Errorf("explain takes its addresses by flags, and %q belongs to none: give --from ADDRESS --to ADDRESS:PORT", args[0])
}

// parseSource reads the value of --from: an address, perhaps with a port, perhaps with "%" and an interface.
func parseSource(text string) (source netip.AddrPort, iface string, err error) {
	address, iface, _ := strings.Cut(text, "%")
	if strings.Contains(iface, "]") { // [fe80::1%eth0]:80
		var rest string
		iface, rest, _ = strings.Cut(iface, "]")
		address += "]" + rest
	}
	source, err = parseAddrPort(address)
	return source, iface, err
}

// parsePacket reads the values of --from, --to and --iif.
func parsePacket(from, to, iif string) (evaluator.Packet, error) {
	target, protocol, named := strings.Cut(to, "/")
	if !named {
		protocol = "tcp"
	}
	destination, err := parseAddrPort(target)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--to: %w", err)
	}
	source, iface, err := parseSource(from)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--from: %w", err)
	}
	if iif == "" {
		iif = iface
	}
	if source.Addr().Is4() != destination.Addr().Is4() {
		return evaluator.Packet{}, fmt.Errorf("--from %s and --to %s are of different IP families", from, to)
	}
	number, err := protocolNumber(protocol, destination)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--to: %w", err)
	}
	return evaluator.Packet{Source: source, Destination: destination, Protocol: number, Interface: iif}, nil
}

// parseAddrPort reads an address with or without a port, which is 0 then.
func parseAddrPort(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	if _, port, err := net.SplitHostPort(text); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return netip.AddrPort{}, fmt.Errorf("%q: port %q is not a number from 1 to 65535", text, port)
		}
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
