package nft

import (
	"errors"
	"time"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// rawElement is an element in a message, without copies of its parts. Listings are the hot path of a check: recognising
// a wanted element must not cost an allocation.
type rawElement struct {
	// key, keyEnd and value have their true length: a field that stands alone is not padded.
	key, keyEnd, value []byte
	// verdict is the kernel's code of a verdict, and chain the chain of a jump or goto.
	verdict    uint32
	hasVerdict bool
	chain      []byte
	userdata   []byte
	// timeout and expires are in milliseconds.
	timeout, expires uint64
	flags            uint32
	// counter is the element's counter, if it has one.
	counter counter
	// unknown names a property of the element that this package cannot express; empty for none.
	unknown string
	// stateful says that the element has an expression other than a counter.
	stateful bool
}

var errNoKey = errors.New("element without a key")

// eachElement calls each for the elements of an NFT_MSG_NEWSETELEM message. An element is valid until each returns.
func eachElement(data []byte, each func(*rawElement) error) error {
	var r rawElement
	return decodeAttributes(data, func(typ uint16, b []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return netlinkattr.Each(b, func(_ uint16, b []byte) error {
			r = rawElement{}
			if err := netlinkattr.Each(b, r.take); err != nil {
				return err
			}
			if r.key == nil && !r.catchAll() {
				return errNoKey
			}
			return each(&r)
		})
	})
}

func decodeElement(b []byte) (Element, error) {
	var raw rawElement
	err := netlinkattr.Each(b, raw.take)
	return raw.element(), err
}

// isEnd reports whether the key is the first one after a range.
func (r *rawElement) isEnd() bool { return r.flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 }

func (r *rawElement) catchAll() bool { return r.flags&netlinkattr.SetElemFlagCatchAll != 0 }

func (r *rawElement) take(typ uint16, b []byte) (err error) {
	switch typ {
	case unix.NFTA_SET_ELEM_KEY:
		r.key, err = onlyValue(b)
	case netlinkattr.SetElemKeyEnd:
		r.keyEnd, err = onlyValue(b)
	case unix.NFTA_SET_ELEM_DATA:
		return netlinkattr.Each(b, r.takeData)
	case unix.NFTA_SET_ELEM_FLAGS:
		r.flags, err = netlinkattr.Uint32(b)
		if r.flags&^netlinkattr.SetElemFlagCatchAll != 0 {
			r.unknown = "flags"
		}
	case unix.NFTA_SET_ELEM_TIMEOUT:
		r.timeout, err = netlinkattr.Uint64(b)
	case unix.NFTA_SET_ELEM_EXPIRATION:
		r.expires, err = netlinkattr.Uint64(b)
	case unix.NFTA_SET_ELEM_USERDATA:
		r.userdata = b
	case unix.NFTA_SET_ELEM_EXPR:
		if err = netlinkattr.Each(b, r.counter.take); !r.counter.is {
			r.unknown, r.stateful = unknownExpression, true
		}
	case netlinkattr.SetElemExpressions:
		r.unknown, r.stateful = unknownExpression, true
	case unix.NFTA_SET_ELEM_OBJREF:
		r.unknown = "object"
	}
	return err
}

func (r *rawElement) takeData(typ uint16, b []byte) error {
	if typ == unix.NFTA_DATA_VALUE {
		r.value = b
		return nil
	}
	r.hasVerdict = true
	return netlinkattr.Each(b, r.takeVerdict)
}

func (r *rawElement) takeVerdict(typ uint16, b []byte) (err error) {
	switch typ {
	case unix.NFTA_VERDICT_CODE:
		r.verdict, err = netlinkattr.Uint32(b)
	case unix.NFTA_VERDICT_CHAIN:
		r.chain = b
	}
	return err
}

// onlyValue returns the value in a nest that holds nothing else.
func onlyValue(nest []byte) (value []byte, err error) {
	err = netlinkattr.Each(nest, func(_ uint16, b []byte) error {
		value = b
		return nil
	})
	return value, err
}

// unknownIn names a property of the element that an Element of the set cannot express; empty for none.
func (r *rawElement) unknownIn(s *Set) string {
	if r.unknown == "" && r.counter.is && !s.Counter {
		return unknownExpression
	}
	return r.unknown
}

const unknownExpression = "expression"

// element returns the element with copies of its parts.
func (r *rawElement) element() Element {
	e := Element{
		Key: pad(Data(r.key)), KeyEnd: Data(r.keyEnd), Value: pad(Data(r.value)),
		Comment: string(commentIn(r.userdata)),
		Timeout: time.Duration(r.timeout) * time.Millisecond, Expires: time.Duration(r.expires) * time.Millisecond,
	}
	if r.catchAll() {
		e.Key, e.KeyEnd = CatchAll, ""
	}
	e.Stateful = r.stateful
	if r.hasVerdict {
		e.Verdict = Verdict{Kind: verdictKind(expr.VerdictKind(int32(r.verdict))), Chain: netlinkattr.Text(r.chain)}
	}
	return e
}

// is reports whether the element equals e. It does not look at unknown.
func (r *rawElement) is(e *Element) bool {
	switch {
	case r.timeout != uint64(e.Timeout.Milliseconds()) || r.expires != uint64(e.Expires.Milliseconds()):
		return false
	case !r.catchAll() && string(r.keyEnd) != string(e.KeyEnd), !isPadded(r.value, e.Value):
		return false
	case r.hasVerdict:
		if !e.Verdict.Kind.known() || r.verdict != uint32(e.Verdict.Kind.kernel()) ||
			string(netlinkattr.TextBytes(r.chain)) != e.Verdict.Chain {
			return false
		}
	case e.Verdict != Verdict{}:
		return false
	}
	comment := commentIn(r.userdata)
	return string(comment) == e.Comment || sameComment(string(comment), e.Comment)
}

// isPadded reports whether d is b, padded.
func isPadded(b []byte, d Data) bool {
	if len(d) != netlinkattr.Padded(len(b)) || string(b) != string(d[:len(b)]) {
		return false
	}
	for i := len(b); i < len(d); i++ {
		if d[i] != 0 {
			return false
		}
	}
	return true
}

// pad pads a field that stands alone, which the kernel keeps at its true length.
func pad(d Data) Data {
	if len(d)%4 == 0 {
		return d
	}
	return d + Data(make([]byte, netlinkattr.Padded(len(d))-len(d)))
}

// putRead puts an element that was read. If unknown names a property that e cannot express, the element differs from
// every wanted one.
func (s *Set) putRead(e Element, unknown string) {
	s.Put(e)
	if unknown == "" {
		return
	}
	if s.kernel.unknown == nil {
		s.kernel.unknown = map[Data]string{}
	}
	s.kernel.unknown[e.Key] = unknown
}

// Count is the count of an element of a Set with Counter.
type Count struct {
	// Packets is the number of packets for which a lookup found the element. Bytes is the sum of their lengths, IP header
	// included.
	Packets, Bytes uint64
}

const counterName = "counter"

// encodeCounter makes the kernel give each element of a set a counter.
func encodeCounter(a *netlinkattr.List) {
	e := a.Begin(netlinkattr.SetExpr)
	a.Text(unix.NFTA_EXPR_NAME, counterName)
	a.End(a.Begin(unix.NFTA_EXPR_DATA))
	a.End(e)
}

// counter is an expression of a set or of an element that may be a counter.
type counter struct {
	// is says that the expression is a counter.
	is bool
	Count
}

// take takes an attribute of the expression. The name comes before the data.
func (c *counter) take(typ uint16, b []byte) error {
	switch typ {
	case unix.NFTA_EXPR_NAME:
		c.is = string(netlinkattr.TextBytes(b)) == counterName
	case unix.NFTA_EXPR_DATA:
		if c.is {
			return netlinkattr.Each(b, c.takeCount)
		}
	}
	return nil
}

func (c *counter) takeCount(typ uint16, b []byte) (err error) {
	switch typ {
	case unix.NFTA_COUNTER_BYTES:
		c.Bytes, err = netlinkattr.Uint64(b)
	case unix.NFTA_COUNTER_PACKETS:
		c.Packets, err = netlinkattr.Uint64(b)
	}
	return err
}
