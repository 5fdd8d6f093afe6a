package nft

import (
	"fmt"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Object is a stateful object or a flowtable. This package makes none; it deletes objects that another program put
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

// decodeObject decodes a message about an object or a flowtable, in which the name has the same number.
func decodeObject(data []byte, isFlowtable bool) (o Object, err error) {
	v := variables{unix.NFTA_OBJ_NAME: &o.Name}
	if !isFlowtable {
		v[unix.NFTA_OBJ_TYPE] = &o.number
	}
	err = decodeAttributes(data, v.Take)
	if o.Kind = objectKinds[o.number]; isFlowtable {
		o.Kind = flowtableKind
	} else if o.Kind == "" {
		o.Kind = fmt.Sprintf("object-%d", o.number)
	}
	return o, err
}

func (e *encoder) deleteObject(s Step, a netlinkattr.List) {
	a.Text(unix.NFTA_OBJ_NAME, s.Object.Name)
	if s.Object.Kind == flowtableKind {
		e.message(s, netlinkattr.MsgDelFlowtable, 0, a)
		return
	}
	a.Uint32(unix.NFTA_OBJ_TYPE, s.Object.number)
	e.message(s, unix.NFT_MSG_DELOBJ, 0, a)
}
