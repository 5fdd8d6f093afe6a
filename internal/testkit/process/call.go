package process

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Call is a system call that waits for its verdict.
type Call struct{ n notification }

// Number is the number of the call (unix.SYS_…).
func (c *Call) Number() int { return int(c.n.number) }

// Argument returns an argument of the call; the first is 0.
func (c *Call) Argument(i int) uint64 { return c.n.arguments[i] }

// FD is the first argument, as a file descriptor of who calls.
func (c *Call) FD() int { return int(int32(c.n.arguments[0])) }

// Message returns what sendmsg is about to send.
func (c *Call) Message() (data []byte) {
	m := c.memory()
	defer m.Close()
	for _, v := range m.vectors(c.n.arguments[1]) {
		data = append(data, m.at(v.address, v.size)...)
	}
	return data
}

// Received returns the verdict that has recvmsg receive a datagram with these flags (MSG_TRUNC). What is longer than the
// buffer is cut.
func (c *Call) Received(datagram []byte, flags int) Verdict {
	m := c.memory()
	defer m.Close()
	header := c.n.arguments[1]
	m.put(header+headerFlags, binary.NativeEndian.AppendUint32(nil, uint32(flags)))
	m.put(header+headerNameLength, binary.NativeEndian.AppendUint32(nil, 0))
	left := datagram
	for _, v := range m.vectors(header) {
		n := min(uint64(len(left)), v.size)
		m.put(v.address, left[:n])
		left = left[n:]
	}
	return Return(len(datagram) - len(left))
}

// Store writes to the memory of who calls.
func (c *Call) Store(address uint64, data []byte) {
	m := c.memory()
	defer m.Close()
	m.put(address, data)
}

// memory is that of a thread that waits.
type memory struct{ *os.File }

func (c *Call) memory() memory {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.n.pid), os.O_RDWR, 0)
	if err != nil {
		return memory{} // it was killed meanwhile; reading nil is an error
	}
	return memory{file}
}

func (m memory) at(address, size uint64) []byte {
	part := make([]byte, size)
	_, _ = m.ReadAt(part, int64(address))
	return part
}

func (m memory) put(address uint64, data []byte) { _, _ = m.WriteAt(data, int64(address)) }

// Parts of a msghdr on 64-bit machines.
const (
	headerSize       = 56
	headerNameLength = 8
	headerVectors    = 16
	headerCount      = 24
	headerFlags      = 48
	vectorSize       = 16
)

type vector struct{ address, size uint64 }

func (m memory) vectors(header uint64) (all []vector) {
	b := m.at(header, headerSize)
	at, count := binary.NativeEndian.Uint64(b[headerVectors:]), binary.NativeEndian.Uint64(b[headerCount:])
	for ; count > 0; count, at = count-1, at+vectorSize {
		v := m.at(at, vectorSize)
		all = append(all, vector{binary.NativeEndian.Uint64(v), binary.NativeEndian.Uint64(v[8:])})
	}
	return all
}

// Netlink are the system calls that work with netlink sockets once they are open, and few others do: Go's network
// connections read and write.
var Netlink = []uint32{unix.SYS_BIND, unix.SYS_SETSOCKOPT, unix.SYS_SENDMSG, unix.SYS_RECVMSG}
