package ruledump

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// parseData is the inverse of nft.Concat.Format.
func parseData(c nft.Concat, text string) (nft.Data, error) {
	if digits, isRaw := strings.CutPrefix(text, "0x"); isRaw && len(c) > 1 && !strings.Contains(digits, " ") {
		raw, err := hex.DecodeString(digits)
		return nft.Data(raw), err
	}
	parts := strings.Split(text, " . ")
	if len(parts) != len(c) {
		return "", fmt.Errorf("%q has %d parts, and %s has %d", text, len(parts), c, len(c))
	}
	var out nft.Data
	for i, e := range c {
		d, err := parseValue(e, parts[i])
		if err != nil {
			return "", err
		}
		out += d
	}
	return out, nil
}

// parseKey reads the key of an element: its last field may be a range, written as a prefix or as two ends.
func parseKey(set *nft.Set, text string) (key, end nft.Data, err error) {
	switch {
	case text == "*":
		return nft.CatchAll, "", nil
	case !set.Interval:
		key, err = parseData(set.Key, text)
		return key, "", err
	case len(set.Key) == 0:
		return "", "", fmt.Errorf("a set without a key has ranges")
	}
	at := strings.LastIndex(text, " . ")
	if at < 0 {
		return "", "", fmt.Errorf("%q is no key of %s with a range", text, set.Key)
	}
	last := set.Key[len(set.Key)-1:]
	before, err := parseData(set.Key[:len(set.Key)-1], text[:at])
	if err != nil {
		return "", "", err
	}
	from, to, err := parseRange(last, text[at+len(" . "):])
	return before + from, before + to, err
}

func parseRange(c nft.Concat, text string) (from, to nft.Data, err error) {
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return "", "", err
		}
		first := prefix.Masked().Addr()
		last := first.AsSlice()
		for bit := prefix.Bits(); bit < first.BitLen(); bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		return nft.AddrData(first), nft.Data(last), nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if from, err = parseData(c, first); err != nil || !isRange {
		return from, from, err
	}
	to, err = parseData(c, last)
	return from, to, err
}

// parseValue reads the value of one field.
func parseValue(e nft.Expr, text string) (nft.Data, error) {
	field, isField := e.(nft.Field)
	if !isField { // a slot
		return parseInteger(text, 10)
	}
	switch field {
	case nft.IPSaddr, nft.IPDaddr, nft.IP6Saddr, nft.IP6Daddr, nft.CTOriginalIPDaddr, nft.CTOriginalIP6Daddr:
		addr, err := netip.ParseAddr(text)
		if err == nil && addr.Zone() != "" {
			err = fmt.Errorf("address %s has a zone", addr)
		}
		if data := nft.AddrData(addr); err == nil && len(data) != (nft.Concat{e}).Len() {
			err = fmt.Errorf("address %s is of another family than %s", addr, field)
		}
		return nft.AddrData(addr), err
	case nft.ThSport, nft.ThDport, nft.CTOriginalProtoDst, nft.CTReplyProtoSrc:
		port, err := strconv.ParseUint(text, 10, 16)
		return nft.PortData(uint16(port)), err
	case nft.MetaMark:
		return parseInteger(strings.TrimPrefix(text, "0x"), 16)
	case nft.MetaIifname, nft.MetaOifname:
		name, err := strconv.Unquote(text)
		if err == nil && len(name) > 16 {
			err = fmt.Errorf("interface name %q is too long", name)
		}
		return nft.Data(name + strings.Repeat("\x00", max(16-len(name), 0))), err
	}
	return parseWord(field, text)
}

func parseInteger(text string, base int) (nft.Data, error) {
	v, err := strconv.ParseUint(text, base, 32)
	return nft.IntegerData(uint32(v)), err
}

// words is how many values of a field are tried. nft has words for small numbers only.
const words = 256

// parseWord reads a value for which nft has a word. It searches the value that prints like this.
func parseWord(field nft.Field, text string) (nft.Data, error) {
	c := nft.Concat{field}
	for v := range uint32(words) {
		data := nft.IntegerData(v)
		if field == nft.MetaL4proto {
			data = nft.ProtoData(uint8(v))
		}
		if c.Format(data) == text {
			return data, nil
		}
	}
	return "", fmt.Errorf("%s has no value %q", field, text)
}

// parseFlags reads bits for which nft has words.
func parseFlags(field nft.Field, text string) (uint32, error) {
	if digits, isRaw := strings.CutPrefix(text, "0x"); isRaw {
		v, err := strconv.ParseUint(digits, 16, 32)
		return uint32(v), err
	}
	var bits uint32
	for word := range strings.SplitSeq(text, ",") {
		before := bits
		for bit := uint32(1); bit != 0; bit <<= 1 {
			if (nft.Concat{field}).Format(nft.IntegerData(bit)) == word {
				bits |= bit
			}
		}
		if bits == before {
			return 0, fmt.Errorf("%s has no flag %q", field, word)
		}
	}
	return bits, nil
}
