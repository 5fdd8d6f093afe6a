package verb

import (
	"encoding/binary"
	"io"
	"time"
)

// capture writes packets in the format of libpcap (draft-ietf-opsawg-pcap), which Wireshark and tcpdump read.
type capture struct{ to io.Writer }

// newCapture writes the header of the file: packets begin with the header of IP (LINKTYPE_RAW).
func newCapture(to io.Writer) (*capture, error) {
	const magic, major, minor, maxLength, linkTypeRaw = 0xa1b2c3d4, 2, 4, 1 << 16, 101
	header := binary.LittleEndian.AppendUint32(nil, magic)
	header = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(header, major), minor)
	for _, field := range []uint32{0, 0, maxLength, linkTypeRaw} {
		header = binary.LittleEndian.AppendUint32(header, field)
	}
	_, err := to.Write(header)
	return &capture{to}, err
}

// add writes a packet as it came, and as it was last seen if its addresses have changed by then.
func (c *capture) add(p *underway) error {
	err := c.write(p.begun, p.first.Headers)
	if err == nil && (p.first.Source != p.latest.Source || p.first.Destination != p.latest.Destination) {
		err = c.write(p.begun, p.latest.Headers)
	}
	return err
}

func (c *capture) write(at time.Time, headers []byte) error {
	length := len(headers)
	switch { // the length of the whole packet stands in the header of IP
	case length >= 20 && headers[0]>>4 == 4:
		length = max(length, int(binary.BigEndian.Uint16(headers[2:])))
	case length >= 40:
		length = max(length, 40+int(binary.BigEndian.Uint16(headers[4:])))
	default:
		return nil // the kernel reported no packet of IP
	}
	var record []byte
	for _, field := range []int64{at.Unix(), int64(at.Nanosecond() / 1000), int64(len(headers)), int64(length)} {
		record = binary.LittleEndian.AppendUint32(record, uint32(field))
	}
	_, err := c.to.Write(append(record, headers...))
	return err
}
