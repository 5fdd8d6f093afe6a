package conntrack

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// What Linux 6.18 lists for dns4 and dns6, on a little-endian machine.
const (
	listedDNS4 = "0200000034000180" +
		"14000180080001000af40109080002000a60000a" + "1c00028005000100110000000600020003e80000060003000035000034000280" +
		"14000180080001000af40101080002000af40109" + "1c00028005000100110000000600020014e900000600030003e80000" +
		"0800030000000008080008000000000008000c0087a2762808000b00000000010800070000000e0f"
	listedDNS6 = "0a0000004c000180" +
		"2c00018014000300fd00000000000000000000000000000914000400fd00009600000000000000000000000a" + "1c00028005000100110000000600020003e8000006000300003500004c000280" +
		"2c00018014000300fd00000100000000000000000000000114000400fd000000000000000000000000000009" + "1c00028005000100110000000600020014e900000600030003e80000" +
		"0800030000000008080008000000000008000c00a4938fe408000b00000000010800070000000e0f"
)

// recorded returns a message as this machine's kernel would send it: lengths and types of attributes are in the byte
// order of the machine, all else here is in that of the network.
func recorded(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	toNativeOrder(b[headerLen:])
	return b
}

func toNativeOrder(attributes []byte) {
	const nested = 0x8000 // NLA_F_NESTED
	for len(attributes) > 0 {
		length, typ := binary.LittleEndian.Uint16(attributes), binary.LittleEndian.Uint16(attributes[2:])
		binary.NativeEndian.PutUint16(attributes, length)
		binary.NativeEndian.PutUint16(attributes[2:], typ)
		if typ&nested != 0 {
			toNativeOrder(attributes[4:length])
		}
		attributes = attributes[(length+3)&^3:]
	}
}

func TestDecodeEntry(t *testing.T) {
	for text, want := range map[string]Flow{listedDNS4: dns4, listedDNS6: dns6} {
		e, err := decodeEntry(recorded(t, text))
		if err != nil || e.flow != want {
			t.Errorf("decoded %+v, %v; want %+v", e.flow, err, want)
		}
	}
	t.Run("refuses an entry that lacks something", testDecodeEntryRefusesAnEntryThatLacksSomething)
}

func testDecodeEntryRefusesAnEntryThatLacksSomething(t *testing.T) {
	whole := recorded(t, listedDNS4)
	// The entry is whole with its number, which has 12 bytes of other attributes behind it.
	for n := range len(whole) - 20 {
		if e, err := decodeEntry(whole[:n]); !errors.Is(err, errMalformed) {
			t.Fatalf("the first %d bytes are %+v, %v; want %v", n, e, err, errMalformed)
		}
	}
}

// FuzzDecodeEntry shows that no message makes the decoder fall over, and that the name of
// an entry names just that entry.
func FuzzDecodeEntry(f *testing.F) {
	f.Add(recorded(f, listedDNS4))
	f.Add(recorded(f, listedDNS6))
	f.Fuzz(func(t *testing.T, message []byte) {
		e, err := decodeEntry(message)
		if err != nil {
			return
		}
		again := netlinkattr.List(append(make([]byte, headerLen), e.name()...))
		again.Bytes(ctaTupleReply, reply(message))
		named, err := decodeEntry(again)
		named.flow.State = e.flow.State // no part of the name
		if err != nil || named.flow != e.flow || string(named.id) != string(e.id) || string(named.zone) != string(e.zone) {
			t.Errorf("%+v is named %+v, %v", e, named, err)
		}
	})
}

// reply returns the reply tuple that counts in a message: the last.
func reply(message []byte) (last []byte) {
	_ = netlinkattr.Each(message[headerLen:], func(typ uint16, payload []byte) error {
		if typ == ctaTupleReply {
			last = payload
		}
		return nil
	})
	return last
}
