package flows

import "testing"

func TestSCTPPacket(t *testing.T) {
	t.Run("reads back", testSCTPPacketsReadBack)
}

func testSCTPPacketsReadBack(t *testing.T) {
	for _, packet := range []sctpPacket{
		{source: 1, destination: 2, chunk: chunkInit, initTag: 7},
		{source: 2, destination: 1, tag: 7, chunk: chunkInitAck, initTag: 8, cookie: "where you came from"},
		{source: 2, destination: 1, tag: 7, chunk: chunkAbort},
	} {
		got, ok := parseSCTP(packet.marshal())
		if !ok || got != packet {
			t.Errorf("got %+v, %t, want %+v", got, ok, packet)
		}
		damaged := packet.marshal()
		damaged[0]++
		if _, ok := parseSCTP(damaged); ok {
			t.Errorf("%+v was accepted with a wrong checksum", packet)
		}
	}
}

func FuzzParseSCTP(f *testing.F) {
	f.Add(sctpPacket{chunk: chunkInitAck, cookie: "x"}.marshal())
	f.Fuzz(func(_ *testing.T, b []byte) {
		if len(b) >= sctpHeaderLen {
			sum := sctpChecksum(b)
			b[8], b[9], b[10], b[11] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		}
		parseSCTP(b)
	})
}

func FuzzQuotedPacket(f *testing.F) {
	f.Add(make([]byte, 60))
	f.Fuzz(func(_ *testing.T, b []byte) {
		icmpv4.quoted(b)
		icmpv6.quoted(b)
	})
}
