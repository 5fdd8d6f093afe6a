package nft

import "encoding/binary"

// typeofVerdict describes a verdict map's values: nft's expression kind 1, without data.
func typeofVerdict(b []byte) []byte {
	b = appendUdataU32(b, 0, 1)
	return append(b, 1, 0)
}

func (c Concat) byteOrder() uint32 {
	if len(c) == 1 {
		return c[0].dataType().order
	}
	return orderNone
}

func (c Concat) typeof(b []byte) []byte {
	if len(c) == 1 {
		return c[0].typeof(b)
	}
	b = appendUdataU32(b, 0, udataConcat)
	return appendNested(b, 1, func(b []byte) []byte {
		for i, e := range c {
			b = appendNested(b, byte(i), e.typeof)
		}
		return b
	})
}

// decodeTypeof reads a typeof description by comparing it with those that this package writes. It returns nil if it is
// none of them.
func decodeTypeof(b []byte) Concat {
	var kind uint32
	var body []byte
	eachUdata(b, func(typ byte, value []byte) {
		switch {
		case typ == 0 && len(value) == 4:
			kind = binary.NativeEndian.Uint32(value)
		case typ == 1:
			body = value
		}
	})
	if kind != udataConcat {
		if e := decodeTypeofOne(b, kind, body); e != nil {
			return Concat{e}
		}
		return nil
	}
	var c Concat
	known := true
	eachUdata(body, func(_ byte, value []byte) {
		part := decodeTypeof(value)
		known = known && len(part) == 1
		c = append(c, part...)
	})
	if !known {
		return nil
	}
	return c
}

func decodeTypeofOne(b []byte, kind uint32, body []byte) Expr {
	if kind == udataNumgen {
		n := Numgen{}
		eachUdata(body, func(typ byte, value []byte) {
			if typ == 1 && len(value) == 4 {
				n.Mod = binary.NativeEndian.Uint32(value)
			}
		})
		if string(n.typeof(nil)) != string(b) {
			return nil
		}
		return n
	}
	for f := Field(1); int(f) < len(fields); f++ {
		if fields[f].kind != 0 && string(f.typeof(nil)) == string(b) {
			return f
		}
	}
	return nil
}
