package flows

import (
	"encoding/binary"
	"hash/crc32"
)

// An SCTP association is opened with two chunks, which is all of SCTP that is spoken here:
// it tells where a packet ends and how it got there, without the kernel having SCTP (RFC 9260).
const (
	chunkInit    = 1
	chunkInitAck = 2
	chunkAbort   = 6

	// parameterCookie is the field of an INIT ACK that may hold anything: here, the answer.
	parameterCookie = 7
)

const (
	sctpHeaderLen = 12
	chunkInitLen  = 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket is a packet with one chunk.
type sctpPacket struct {
	source, destination uint16
	// tag is what the receiver told the sender to put into its packets, 0 in an INIT.
	tag   uint32
	chunk uint8
	// initTag is the tag that the sender of an INIT or INIT ACK wants to see.
	initTag uint32
	cookie  string
}

func (p sctpPacket) marshal() []byte {
	length := 4
	if p.chunk != chunkAbort {
		length = chunkInitLen
	}
	if p.cookie != "" {
		length += 4 + len(p.cookie)
	}
	b := make([]byte, sctpHeaderLen+(length+3)/4*4)
	binary.BigEndian.PutUint16(b[0:], p.source)
	binary.BigEndian.PutUint16(b[2:], p.destination)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	chunk := b[sctpHeaderLen:]
	chunk[0] = p.chunk
	binary.BigEndian.PutUint16(chunk[2:], uint16(length))
	if p.chunk != chunkAbort {
		p.putInit(chunk)
	}
	binary.LittleEndian.PutUint32(b[8:], sctpChecksum(b))
	return b
}

// putInit fills in what INIT and INIT ACK have in common.
func (p sctpPacket) putInit(chunk []byte) {
	binary.BigEndian.PutUint32(chunk[4:], p.initTag)
	binary.BigEndian.PutUint32(chunk[8:], 1<<16)
	binary.BigEndian.PutUint16(chunk[12:], 1)
	binary.BigEndian.PutUint16(chunk[14:], 1)
	binary.BigEndian.PutUint32(chunk[16:], p.initTag)
	if p.cookie != "" {
		parameter := chunk[chunkInitLen:]
		binary.BigEndian.PutUint16(parameter[0:], parameterCookie)
		binary.BigEndian.PutUint16(parameter[2:], uint16(4+len(p.cookie)))
		copy(parameter[4:], p.cookie)
	}
}

// parseSCTP reports false for what an SCTP stack would ignore, a wrong checksum above all:
// whoever rewrites ports has to mend it.
func parseSCTP(b []byte) (sctpPacket, bool) {
	if len(b) < sctpHeaderLen+4 || binary.LittleEndian.Uint32(b[8:]) != sctpChecksum(b) {
		return sctpPacket{}, false
	}
	p := sctpPacket{
		source:      binary.BigEndian.Uint16(b[0:]),
		destination: binary.BigEndian.Uint16(b[2:]),
		tag:         binary.BigEndian.Uint32(b[4:]),
		chunk:       b[sctpHeaderLen],
	}
	chunk := b[sctpHeaderLen:]
	length := int(binary.BigEndian.Uint16(chunk[2:]))
	if length < 4 || length > len(chunk) {
		return sctpPacket{}, false
	}
	if p.chunk != chunkInit && p.chunk != chunkInitAck {
		return p, true
	}
	if length < chunkInitLen {
		return sctpPacket{}, false
	}
	p.initTag = binary.BigEndian.Uint32(chunk[4:])
	p.cookie = parseCookie(chunk[chunkInitLen:length])
	return p, true
}

// parseCookie returns the cookie that is the first parameter of a chunk, empty when there is none.
func parseCookie(parameter []byte) string {
	if len(parameter) < 4 || binary.BigEndian.Uint16(parameter) != parameterCookie {
		return ""
	}
	length := int(binary.BigEndian.Uint16(parameter[2:]))
	if length < 4 || length > len(parameter) {
		return ""
	}
	return string(parameter[4:length])
}

// sctpChecksum is computed as if the checksum field were zero.
func sctpChecksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, []byte{0, 0, 0, 0})
	return crc32.Update(sum, castagnoli, b[12:])
}
