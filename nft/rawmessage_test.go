package nft

import (
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// rawMessage is a message that this package would not write.
func rawMessage(typ uint16, data netlinkattr.List) message {
	return message{Message: netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | netlink.Create},
		Data:   data,
	}}
}

// commitRaw commits messages as they are.
func commitRaw(t testing.TB, c *Conn, messages ...message) {
	t.Helper()
	if err := c.use(t.Context(), func(s *socket) error { return s.commit(s.newBatch(messages, 0)) }); err != nil {
		t.Fatal(err)
	}
}
