package proxy

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// A connection that begins while there are no rules is never translated: connection tracking applies the decision about
// its first packet to all later ones, also to a SYN that TCP sends again. So after the first Sync and after a repair,
// unanswered entries of TCP and SCTP are removed if they dial a frontend that has endpoints. The client's next SYN,
// about a second later, is then translated. kube-proxy leaves such entries to their timeout (120 s).
var connectionProtocols = []model.Protocol{model.TCP, model.SCTP}

// frontendServes reports whether a frontend has endpoints. An address that is not valid stands for a node port.
type frontendServes func(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) bool

func (b *Backend) frontendServes(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	owner := b.compiler.Owner(family, protocol, addr, port)
	return owner != nil && len(owner.Cluster)+len(owner.Local) > 0
}

// deleteUntranslated searches for such entries, if there was a gap since the last search that succeeded.
func (c *FlowCleaner) deleteUntranslated(ctx context.Context) error {
	gaps := c.gaps.Load()
	if gaps == c.gapsSearched.Load() {
		return nil
	}
	var failures []error
	for _, family := range model.Families {
		local, err := nodeaddr.Local(c.netNS, family)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		for _, protocol := range connectionProtocols {
			stats, err := c.table.DeleteUntranslated(ctx, family, uint8(protocol), func(f conntrack.Flow) bool {
				return !f.Translated() && c.dialsFrontend(family, protocol, f.Dialed, local)
			})
			if stats.Deleted > 0 {
				klog.FromContext(ctx).V(2).Info("Removed connections that began without rules", "family", family, "protocol", protocol, "connections", stats.Deleted, "duration", stats.Duration)
			}
			failures = append(failures, err)
		}
	}
	err := errors.Join(failures...)
	if err == nil {
		c.gapsSearched.Store(gaps)
	}
	return err
}

func (c *FlowCleaner) dialsFrontend(family model.Family, protocol model.Protocol, dialed netip.AddrPort, local []netip.Prefix) bool {
	if c.serves(family, protocol, dialed.Addr(), dialed.Port()) {
		return true
	}
	return c.flows.answersNodePorts(dialed.Addr(), local) && c.serves(family, protocol, netip.Addr{}, dialed.Port())
}
