package ruledump

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// ruleText is the rest of a rule that is being read.
type ruleText struct {
	family nft.Family
	rest   string
}

// parseRule reads a rule without its comment, as nft.Rule prints it.
func parseRule(family nft.Family, text string) ([]nft.Statement, error) {
	t := &ruleText{family, text}
	var out []nft.Statement
	for t.rest != "" {
		s, err := t.statement()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
		t.rest = strings.TrimLeft(t.rest, " ")
	}
	return out, nil
}

// skip removes a text from the front, if it is there.
func (t *ruleText) skip(text string) bool {
	rest, found := strings.CutPrefix(t.rest, text)
	if found && (rest == "" || strings.HasSuffix(text, " ") || strings.HasSuffix(text, "@") || rest[0] == ' ') {
		t.rest = rest
		return true
	}
	return false
}

// word removes and returns everything up to the next space. A quoted text counts as one word.
func (t *ruleText) word() string {
	if quoted, err := strconv.QuotedPrefix(t.rest); err == nil {
		t.rest = strings.TrimLeft(t.rest[len(quoted):], " ")
		return quoted
	}
	word, rest, _ := strings.Cut(t.rest, " ")
	t.rest = rest
	return word
}

// statement reads the next statement.
func (t *ruleText) statement() (nft.Statement, error) {
	switch {
	case t.skip("masquerade fully-random"):
		return nft.Masquerade{}, nil
	case t.skip("reject"):
		return nft.Reject{Family: t.family}, nil
	case t.skip("counter"):
		return nft.Counter{}, nil
	case t.skip("meta mark set meta mark | "):
		bits, err := parseBits(t.word())
		return nft.SetMark{Or: bits}, err
	case t.skip("meta mark set meta mark ^ "):
		bits, err := parseBits(t.word())
		return nft.SetMark{Xor: bits}, err
	case t.skip("meta mark & "):
		return t.matchMark()
	case t.skip("dnat "):
		return t.dnat()
	case t.skip("update @"):
		return t.update()
	}
	if v, found := t.verdict(); found {
		return v, nil
	}
	if strings.HasPrefix(t.rest, "unknown-") {
		return nft.Unknown{Name: strings.TrimPrefix(t.word(), "unknown-")}, nil
	}
	return t.match()
}

func parseBits(text string) (uint32, error) {
	bits, err := strconv.ParseUint(text, 0, 32)
	return uint32(bits), err
}

func (t *ruleText) matchMark() (nft.Statement, error) {
	m := nft.Match{Field: nft.MetaMark}
	var err error
	if m.Mask, err = parseBits(t.word()); err != nil {
		return nil, err
	}
	switch {
	case t.skip("!= "):
		m.Op = nft.NotEqual
	case !t.skip("== "):
		return nil, errors.New("the mark is not compared")
	}
	m.Value, err = parseBits(t.word())
	return m, err
}

func (t *ruleText) dnat() (nft.Statement, error) {
	if !t.skip(t.family.String() + " to ") {
		return nil, errors.New("dnat names another family than the table")
	}
	key, err := t.concat()
	if err == nil && !t.skip("map @") {
		err = errors.New("dnat names no map")
	}
	return nft.DNAT{Family: t.family, Key: key, Map: t.word()}, err
}

func (t *ruleText) update() (nft.Statement, error) {
	u := nft.Update{Map: t.word()}
	var err error
	if !t.skip("{ ") {
		return nil, errors.New("update names no element")
	}
	if u.Key, err = t.concat(); err != nil {
		return nil, err
	}
	if !t.skip("timeout ") {
		return nil, errors.New("update names no timeout")
	}
	if u.Timeout, err = parseDuration(t.word()); err != nil {
		return nil, err
	}
	if !t.skip(": ") {
		return nil, errors.New("update names no data")
	}
	if u.Data, err = t.concat(); err != nil {
		return nil, err
	}
	if !t.skip("}") {
		return nil, errors.New("update does not end")
	}
	return u, nil
}

// parseDuration reads nft's "1d2h3m4s500ms".
func parseDuration(text string) (time.Duration, error) {
	var days time.Duration
	if number, rest, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, err
		}
		if days, text = time.Duration(n)*24*time.Hour, rest; text == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(text)
	return days + d, err
}

// verdict removes and returns a verdict from the front.
func (t *ruleText) verdict() (nft.Verdict, bool) {
	for _, kind := range []nft.VerdictKind{nft.VerdictAccept, nft.VerdictDrop, nft.VerdictReturn, nft.VerdictJump, nft.VerdictGoto} {
		if t.skip(nft.Verdict{Kind: kind}.String()) {
			v := nft.Verdict{Kind: kind}
			if kind == nft.VerdictJump || kind == nft.VerdictGoto {
				t.rest = strings.TrimLeft(t.rest, " ")
				v.Chain = t.word()
			}
			return v, true
		}
	}
	return nft.Verdict{}, false
}

// parseVerdict reads the value of a verdict map's element.
func parseVerdict(text string) (nft.Verdict, error) {
	t := &ruleText{rest: text}
	v, found := t.verdict()
	if !found || t.rest != "" {
		return v, fmt.Errorf("%q is no verdict", text)
	}
	return v, nil
}

// match reads a statement that begins with a field.
func (t *ruleText) match() (nft.Statement, error) {
	key, err := t.concat()
	if err != nil {
		return nil, err
	}
	if t.skip("vmap @") {
		return nft.Vmap{Key: key, Map: t.word()}, nil
	}
	op := nft.Equal
	if t.skip("!= ") {
		op = nft.NotEqual
	}
	if t.skip("@") {
		return nft.InSet{Key: key, Op: op, Set: t.word()}, nil
	}
	field, isField := key[0].(nft.Field)
	if len(key) > 1 || !isField {
		return nil, fmt.Errorf("%s is compared with what is neither a set nor a map", key)
	}
	return matchField(field, op, t.word())
}

func matchField(field nft.Field, op nft.Op, text string) (nft.Statement, error) {
	switch field {
	case nft.MetaIifname, nft.MetaOifname:
		name, err := strconv.Unquote(text)
		return nft.Match{Field: field, Op: op, Value: name}, err
	case nft.CTState, nft.CTStatus:
		bits, err := parseFlags(field, text)
		return nft.Match{Field: field, Op: op, Value: bits}, err
	}
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		return nft.Match{Field: field, Op: op, Value: prefix}, err
	}
	value, err := parseData(nft.Concat{field}, text)
	return nft.Match{Field: field, Op: op, Value: value}, err
}

// parseType reads the type of a set's keys or data.
func parseType(text string) (nft.Concat, error) {
	t := &ruleText{rest: text}
	c, err := t.concat()
	if err == nil && t.rest != "" {
		err = fmt.Errorf("there is %q after it", t.rest)
	}
	return c, err
}

// concat removes and returns expressions joined by " . " from the front.
func (t *ruleText) concat() (nft.Concat, error) {
	var out nft.Concat
	for {
		e, err := t.expression()
		if err != nil {
			return nil, err
		}
		out = append(out, e)
		t.rest = strings.TrimLeft(t.rest, " ")
		if !t.skip(". ") {
			return out, nil
		}
	}
}

// fieldNames are the fields, by nft's names for them.
var fieldNames = func() map[string]nft.Field {
	out := map[string]nft.Field{}
	for f := nft.Field(1); !strings.HasPrefix(f.String(), "field-"); f++ {
		out[f.String()] = f
	}
	return out
}()

// fieldWords is the most words that the name of a field has: "ct original ip daddr".
const fieldWords = 4

func (t *ruleText) expression() (nft.Expr, error) {
	if t.skip("numgen random mod ") {
		mod, err := parseBits(t.word())
		return nft.Numgen{Mod: mod}, err
	}
	if t.skip("jhash ") {
		return t.hash()
	}
	if f, found := t.field(); found {
		return f, nil
	}
	return nil, fmt.Errorf("%q is no field that this version of ruledump knows", t.rest)
}

// field removes the name of a field from the front and returns the field.
func (t *ruleText) field() (nft.Field, bool) {
	end := 0
	for range fieldWords {
		next := strings.IndexByte(t.rest[end:], ' ')
		if next < 0 {
			next = len(t.rest) - end
		}
		end += next
		if f, found := fieldNames[t.rest[:end]]; found {
			t.rest = t.rest[end:]
			return f, true
		}
		if end == len(t.rest) {
			break
		}
		end++
	}
	return 0, false
}

func (t *ruleText) hash() (nft.Expr, error) {
	f, found := t.field()
	t.rest = strings.TrimLeft(t.rest, " ")
	if !found || !t.skip("mod ") {
		return nil, errors.New("jhash names no field or no modulus")
	}
	mod, err := parseBits(t.word())
	if err == nil && !t.skip("seed ") {
		err = errors.New("jhash names no seed")
	}
	if err != nil {
		return nil, err
	}
	seed, err := parseBits(t.word())
	return nft.JHash{Field: f, Mod: mod, Seed: seed}, err
}
