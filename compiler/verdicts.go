package compiler

import (
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// chains returns the endpoint chains of a plan. shortCircuit is for clients that policy Local does not bind.
func (p *plan) chains(fe frontend) (first, shortCircuit endpointChain) {
	switch p.kind {
	case kindNone:
		return endpointChain{}, endpointChain{}
	case kindLocal:
		return p.chain(fe, kindLocal, p.localEndpoints), p.chain(fe, kindDirect, p.endpoints)
	}
	return p.chain(fe, p.kind, p.endpoints), endpointChain{}
}

func (p *plan) chain(fe frontend, kind chainKind, endpoints []model.Endpoint) endpointChain {
	count := len(endpoints)
	return endpointChain{kind: kind, nodePort: fe.isNodePort(), hash: p.affinity != nil && p.affinity.hash && count > 1, count: count}
}

// putVerdicts puts the verdicts of a frontend, and the chains to which they lead.
func (f *family) putVerdicts(e frontendElements) {
	sets := f.sets.of(e.frontend.isNodePort())
	wantFirst, wantShort := e.want.chains(e.frontend)
	haveFirst, haveShort := e.have.chains(e.frontend)
	f.putGoto(sets.services, e, haveFirst, wantFirst)
	f.putGoto(sets.shortCircuits, e, haveShort, wantShort)
	switch e.want.unserved {
	case unservedReject:
		f.draft.Put(sets.noEndpoints, nft.Element{Key: e.key, Verdict: nft.Goto(chainReject), Comment: e.want.comment})
	case unservedDrop:
		f.draft.Put(sets.noEndpoints, nft.Element{Key: e.key, Verdict: nft.Drop, Comment: e.want.comment})
	case unservedNothing:
		f.draft.Remove(sets.noEndpoints, e.key)
	}
}

// putGoto puts the element that leads to the wanted chain.
func (f *family) putGoto(verdicts *nft.Set, e frontendElements, have, want endpointChain) {
	if have != want {
		f.removeGotoElement(have, verdicts, e.key)
		f.useChain(want)
		f.releaseChain(have)
	}
	if want.kind != kindNone {
		f.putGotoElement(want, verdicts, e.key, e.want.comment)
	}
}
