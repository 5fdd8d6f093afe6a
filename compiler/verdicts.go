package compiler

import (
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// chains returns the endpoint chains of a plan. shortCircuit is for clients that policy Local does not bind.
func (f *family) chains(p *plan, fe frontend) (first, shortCircuit endpointChain) {
	switch p.kind {
	case kindNone:
		return endpointChain{}, endpointChain{}
	case kindLocal:
		return f.chain(p, fe, kindLocal, p.localEndpoints), f.chain(p, fe, kindDirect, p.endpoints)
	}
	return f.chain(p, fe, p.kind, p.endpoints), endpointChain{}
}

func (f *family) chain(p *plan, fe frontend, kind chainKind, endpoints []model.Endpoint) endpointChain {
	count := len(endpoints)
	return endpointChain{kind: kind, nodePort: fe.isNodePort(), hash: f.config.AffinityHash && p.affinity != nil && count > 1, count: count}
}

// putVerdicts puts the verdicts of a frontend, and the chains to which they lead.
func (f *family) putVerdicts(e frontendElements) {
	sets := f.sets.of(e.frontend.isNodePort())
	wantFirst, wantShort := f.chains(e.want, e.frontend)
	haveFirst, haveShort := f.chains(e.have, e.frontend)
	f.putGoto(sets.services, e, haveFirst, wantFirst)
	f.putGoto(sets.shortCircuits, e, haveShort, wantShort)
	refusal := nft.Goto(chainReject)
	if e.want.unserved == unservedDrop {
		refusal = nft.Drop
	}
	f.putElementIf(e.want.unserved != unservedNothing, sets.noEndpoints, nft.Element{Key: e.key, Verdict: refusal, Comment: e.want.comment})
}

// putGoto puts the element that leads to the wanted chain.
func (f *family) putGoto(verdicts *nft.Set, e frontendElements, have, want endpointChain) {
	if have != want {
		f.removeGotoElement(have, verdicts, e.key)
		f.countFrontend(want, +1)
		f.countFrontend(have, -1)
	}
	if want.kind != kindNone {
		f.putGotoElement(want, verdicts, e.key, e.want.comment)
	}
}
