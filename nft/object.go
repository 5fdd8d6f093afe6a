package nft

import (
	"fmt"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Object is a stateful object or a flowtable. This package does not make any; it deletes those that somebody else put
// into a table.
type Object struct {
	// Kind is nft's word for it, such as "counter" or "flowtable"; "object-N" for a kind of the kernel's that nft 1.0.6
	// does not have.
	Kind string
	// Name is the object's name in its table.
	Name string
	// number is the kernel's number of the kind of a stateful object; 0 for a flowtable.
	number uint32
}

// String prints the object as nft names it.
func (o Object) String() string { return o.Kind + " " + o.Name }

// objectKinds are nft's words for the kernel's NFT_OBJECT_….
var objectKinds = map[uint32]string{
	1: "counter", 2: "quota", 3: "ct helper", 4: "limit", 6: "tunnel", 7: "ct timeout", 8: "secmark", 9: "ct expectation", 10: "synproxy",
}

const flowtableKind = "flowtable"

// decodeObject decodes an NFT_MSG_NEWOBJ message and returns the table's name too.
func decodeObject(data []byte) (table string, o Object, err error) {
	table, err = o.decode(data)
	if err != nil {
		return "", Object{}, fmt.Errorf("object: %w", err)
	}
	if o.Kind = objectKinds[o.number]; o.Kind == "" {
		o.Kind = fmt.Sprintf("object-%d", o.number)
	}
	return table, o, nil
}

// decodeFlowtable decodes an NFT_MSG_NEWFLOWTABLE message and returns the table's name too.
func decodeFlowtable(data []byte) (table string, o Object, err error) {
	o.Kind = flowtableKind
	table, err = o.decode(data)
	if err != nil {
		return "", Object{}, fmt.Errorf("flowtable: %w", err)
	}
	return table, o, nil
}

// decode takes the attributes of an object's message. A flowtable has the same number for its name, and no type.
func (o *Object) decode(data []byte) (table string, err error) {
	err = decodeAttributes(data, func(typ uint16, b []byte) (err error) {
		switch {
		case typ == attrTable:
			table = netlinkattr.Text(b)
		case typ == unix.NFTA_OBJ_NAME:
			o.Name = netlinkattr.Text(b)
		case typ == unix.NFTA_OBJ_TYPE && o.Kind != flowtableKind:
			o.number, err = netlinkattr.Uint32(b)
		}
		return err
	})
	return table, err
}

// deleteObject encodes the deletion of an object.
func (e *encoder) deleteObject(s Step, a netlinkattr.List) {
	a.Text(unix.NFTA_OBJ_NAME, s.Object.Name)
	if s.Object.Kind == flowtableKind {
		e.message(s, netlinkattr.MsgDelFlowtable, 0, a)
		return
	}
	a.Uint32(unix.NFTA_OBJ_TYPE, s.Object.number)
	e.message(s, unix.NFT_MSG_DELOBJ, 0, a)
}
