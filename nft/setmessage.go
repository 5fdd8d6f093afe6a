package nft

import (
	"encoding/binary"
	"time"

	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

func (e *encoder) addSet(s Step, a netlinkattr.List) error {
	set := s.Set
	if err := set.checkType(); err != nil {
		return fmt.Errorf("nft: %s %s %s %s: %w", set.Kind(), s.Table.Family, s.Table.Name, set.Name, err)
	}
	id := uint32(len(e.setIDs) + 1)
	e.setIDs[set] = id
	a.Text(unix.NFTA_SET_NAME, set.Name)
	flags := uint32(0)
	if set.IsMap() {
		flags |= unix.NFT_SET_MAP
	}
	if set.Interval {
		flags |= intervalFlags
	}
	if set.Dynamic {
		flags |= dynamicFlags
	}
	a.Uint32(unix.NFTA_SET_FLAGS, flags)
	a.Uint32(unix.NFTA_SET_KEY_TYPE, set.Key.typeID())
	a.Uint32(unix.NFTA_SET_KEY_LEN, uint32(set.Key.keyLen()))
	switch {
	case set.Verdicts:
		a.Uint32(unix.NFTA_SET_DATA_TYPE, verdictType)
		a.Uint32(unix.NFTA_SET_DATA_LEN, 0)
	case set.Data != nil:
		a.Uint32(unix.NFTA_SET_DATA_TYPE, set.Data.typeID())
		a.Uint32(unix.NFTA_SET_DATA_LEN, uint32(set.Data.keyLen()))
	}
	encodeDescription(&a, set)
	a.Uint32(unix.NFTA_SET_ID, id)
	a.Bytes(unix.NFTA_SET_USERDATA, set.userdata())
	if set.Counter {
		encodeCounter(&a)
	}
	e.message(s, unix.NFT_MSG_NEWSET, netlink.Create, a)
	return nil
}

// checkType refuses a set whose keys or values nft could not be told the type of.
func (s *Set) checkType() error {
	if len(s.Key) == 0 {
		return errors.New("its keys have no type")
	}
	for _, e := range slices.Concat(s.Key, s.Data) {
		_, is := e.(typePart)
		if f, isField := e.(Field); !is || isField && (int(f) >= len(fields) || fields[f].kind == 0) {
			return fmt.Errorf("%s cannot be part of a set's type", e)
		}
	}
	return nil
}

// encodeDescription encodes the size of a set, if it has one, and for ranges the lengths of the key's fields.
func encodeDescription(a *netlinkattr.List, set *Set) {
	size := set.Size
	if set.Dynamic && size == DefaultSize {
		size = 0 // the kernel takes it for DefaultSize, and does not allocate all hash buckets at once
	}
	if !set.Interval && size == 0 {
		return
	}
	desc := a.Begin(unix.NFTA_SET_DESC)
	if size > 0 {
		a.Uint32(unix.NFTA_SET_DESC_SIZE, size)
	}
	if set.Interval {
		concat := a.Begin(netlinkattr.SetDescConcat)
		for _, e := range set.Key {
			field := a.Begin(unix.NFTA_LIST_ELEM)
			a.Uint32(netlinkattr.SetFieldLen, uint32(e.dataType().length))
			a.End(field)
		}
		a.End(concat)
	}
	a.End(desc)
}

const intervalFlags = unix.NFT_SET_INTERVAL | netlinkattr.SetFlagConcat

const dynamicFlags = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT

// decodeSet decodes an NFT_MSG_NEWSET message, without elements. Anonymous sets, sets with something that this package
// does not write, and sets without a readable description are not misread: their key or data type is opaque.
func decodeSet(data []byte) (*Set, error) {
	s := &Set{}
	count := ^uint32(0) // -1
	var flags, keyLen, dataLen, dataType uint32
	var desc, userdata, expression, timeout, interval, expressions []byte
	err := decodeAttributes(data, variables{
		unix.NFTA_SET_NAME: &s.Name, unix.NFTA_SET_FLAGS: &flags, unix.NFTA_SET_KEY_LEN: &keyLen,
		unix.NFTA_SET_DATA_TYPE: &dataType, unix.NFTA_SET_DATA_LEN: &dataLen, unix.NFTA_SET_DESC: &desc,
		unix.NFTA_SET_USERDATA: &userdata, netlinkattr.SetCount: &count, netlinkattr.SetExpr: &expression,
		unix.NFTA_SET_TIMEOUT: &timeout, unix.NFTA_SET_GC_INTERVAL: &interval, netlinkattr.SetExpressions: &expressions,
	}.Take)
	var c counter
	var fields []byte
	err = cmp.Or(err, netlinkattr.Each(desc, variables{unix.NFTA_SET_DESC_SIZE: &s.Size, netlinkattr.SetDescConcat: &fields}.Take), netlinkattr.Each(expression, c.take))
	if err != nil {
		return nil, err
	}
	s.decodeUserdata(userdata)
	s.kernel = kernelSet{
		count: int(int32(count)), anonymous: flags&unix.NFT_SET_ANONYMOUS != 0,
		bounds: flags&unix.NFT_SET_INTERVAL != 0 && len(fields) == 0, fields: fieldLengths(fields),
	}
	if len(timeout) == 8 {
		s.kernel.timeout = time.Duration(binary.BigEndian.Uint64(timeout)) * time.Millisecond
	}
	s.Counter = c.is
	isMap, kind := flags&unix.NFT_SET_MAP != 0, flags&^unix.NFT_SET_MAP
	s.Interval, s.Dynamic = kind == intervalFlags, kind == dynamicFlags
	strange := timeout != nil || interval != nil || expressions != nil || expression != nil && !c.is
	if strange || kind != 0 && !s.Interval && !s.Dynamic || s.Key == nil || s.Key.keyLen() != int(keyLen) {
		s.Key = opaque(keyLen)
	}
	s.Verdicts = isMap && dataType == verdictType
	switch {
	case !isMap || s.Verdicts:
		s.Data = nil
	case s.Data == nil || s.Data.keyLen() != int(dataLen):
		s.Data = opaque(dataLen)
	}
	return s, nil
}

// fieldLengths decodes the lengths of a concatenation's fields.
func fieldLengths(concat []byte) (lengths []int) {
	// A field that does not decode is left out: then no key is in a range.
	_ = netlinkattr.Each(concat, func(_ uint16, field []byte) error {
		var n uint32
		if err := netlinkattr.Each(field, variables{netlinkattr.SetFieldLen: &n}.Take); err != nil {
			return err
		}
		lengths = append(lengths, int(min(n, 1<<16)))
		return nil
	})
	return lengths
}

// userdata describes the set to nft, byte for byte as nft does when it loads the set's text.
func (s *Set) userdata() []byte {
	b := appendUdataU32(nil, udataSetKeyByteOrder, s.Key.byteOrder())
	if s.IsMap() {
		b = appendUdataU32(b, udataSetDataByteOrder, s.Data.byteOrder())
	}
	b = appendNested(b, udataSetKeyTypeof, s.Key.typeof)
	switch {
	case s.Verdicts:
		b = appendNested(b, udataSetDataTypeof, typeofVerdict)
	case s.Data != nil:
		b = appendNested(b, udataSetDataTypeof, s.Data.typeof)
	}
	if s.IsMap() {
		b = appendUdataU32(b, udataSetDataInterval, 0)
	}
	if s.Comment != "" {
		b = appendUdataString(b, udataSetComment, s.Comment)
	}
	return b
}

func (s *Set) decodeUserdata(b []byte) {
	s.Key, s.Data = decodeTypeof(udataItem(b, udataSetKeyTypeof)), decodeTypeof(udataItem(b, udataSetDataTypeof))
	s.Comment = netlinkattr.Text(udataItem(b, udataSetComment))
}
