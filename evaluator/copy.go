package evaluator

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
)

// sendCopy sends a copy of the packet to where the routes lead to an address. The copy is the node's own packet: it meets the
// hooks output and postrouting, without conntrack (nf_dup_ipv4). The kernel makes no copy of a copy.
func (w *walk) sendCopy(to netip.Addr) error {
	if w.isCopy {
		return nil
	}
	c := *w
	c.isCopy = true
	c.fate = Fate{}
	c.untracked, c.iif, c.atDevice = true, ifname{}, false
	c.leaveTo(to)
	for _, hook := range []nft.Hook{nft.HookOutput, nft.HookPostrouting} {
		if on, err := c.traverse(hook); err != nil {
			return err
		} else if !on {
			if c.fate.Result == Refused { // the packet's sender gets the answer, whatever becomes of the packet itself
				c.fate.Result = Undecided
				c.fate.Path[len(c.fate.Path)-1].Verdict = "refuses the copy, and the sender of the packet gets the answer"
			}
			c.fate.Path = append(w.fate.Path[:len(w.fate.Path):len(w.fate.Path)], c.fate.Path...)
			w.fate.Depends = append(w.fate.Depends[:len(w.fate.Depends):len(w.fate.Depends)], c.fate.Depends...)
			w.fate.Path = c.fate.Path
			if c.fate.Result == Undecided {
				w.fate.Result = Undecided
				return nil
			}
			w.note("the copy ends here")
			return nil
		}
	}
	w.fate.Depends = append(w.fate.Depends[:len(w.fate.Depends):len(w.fate.Depends)], c.fate.Depends...)
	w.fate.CopyTo = to
	return nil
}
