package netlinkattr

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// texts returns type and payload of each attribute.
func texts(t testing.TB, list []byte) (out []string) {
	t.Helper()
	if err := Each(list, func(typ uint16, payload []byte) error {
		out = append(out, fmt.Sprintf("%d %q", typ, payload))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestList(t *testing.T) {
	var l List
	l.Text(1, "abcd")
	l.Uint32(2, 0x01020304)
	l.Uint64(3, 0x0102030405060708)
	l.Bytes(4, []byte{9})
	l.ByteString(5, "xyz")
	nest := l.Begin(6)
	l.Text(1, "in")
	l.End(nest)
	open := l.BeginBytes(7)
	l = append(l, 1, 2, 3)
	l.End(open)
	if len(l)%4 != 0 {
		t.Errorf("the list has %d bytes, which is not a multiple of four", len(l))
	}
	var inner List
	inner.Text(1, "in")
	want := []string{
		`1 "abcd\x00"`, `2 "\x01\x02\x03\x04"`, `3 "\x01\x02\x03\x04\x05\x06\a\b"`, `4 "\t"`, `5 "xyz"`,
		fmt.Sprintf("6 %q", inner), `7 "\x01\x02\x03"`,
	}
	if diff := cmp.Diff(want, texts(t, l)); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestEach(t *testing.T) {
	var l List
	l.Text(1, "abcd")
	l.Uint32(2, 7)
	t.Run("ends with the first error of its function", func(t *testing.T) {
		enough, calls := errors.New("enough"), 0
		if err := Each(l, func(uint16, []byte) error { calls++; return enough }); err != enough || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
	t.Run("refuses an attribute that is not whole", func(t *testing.T) {
		for n := range len(l) {
			err := Each(l[:n], func(uint16, []byte) error { return nil })
			// A rest that is too short for a header is passed over.
			if whole := n < HeaderLen || n >= 9 && n < 12+HeaderLen; whole != (err == nil) || !whole && !errors.Is(err, ErrShort) {
				t.Errorf("the first %d bytes: %v", n, err)
			}
		}
	})
}

func TestFind(t *testing.T) {
	var l List
	l.Text(1, "a")
	l.Text(2, "b")
	l.Text(2, "c")
	for typ, want := range map[uint16]string{1: "a", 2: "b", 3: ""} {
		if got := Find(l, typ); Text(got) != want || (got == nil) != (want == "") {
			t.Errorf("the attribute of type %d is %q, want %q", typ, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Run("of another length are errors", testNumbersOfAnotherLengthAreErrors)
}

func testNumbersOfAnotherLengthAreErrors(t *testing.T) {
	for n := range 10 {
		b := make([]byte, n)
		_, err16 := Uint16(b)
		_, err32 := Uint32(b)
		_, err64 := Uint64(b)
		if (err16 == nil) != (n == 2) || (err32 == nil) != (n == 4) || (err64 == nil) != (n == 8) {
			t.Errorf("%d bytes: %v, %v, %v", n, err16, err32, err64)
		}
	}
}

func FuzzEach(f *testing.F) {
	var l List
	l.Text(1, "abcd")
	f.Add([]byte(l))
	f.Fuzz(func(t *testing.T, list []byte) {
		total := 0
		_ = Each(list, func(_ uint16, payload []byte) error {
			total += HeaderLen + len(payload)
			_ = Text(payload)
			return nil
		})
		if total > len(list) {
			t.Errorf("attributes of %d bytes in %d", total, len(list))
		}
	})
}

func TestAt(t *testing.T) {
	var l List
	l.Text(1, "ab")
	l.Uint32(2, 7)
	for offset, want := range map[int]string{
		-1: "none", 0: `"ab\x00" -4`, 4: `"ab\x00" 0`, 7: `"ab\x00" 3`, 8: `"\x00\x00\x00\a" -4`, 15: `"\x00\x00\x00\a" 3`, 16: "none",
	} {
		got := "none"
		if payload, inside, ok := At(l, offset); ok {
			got = fmt.Sprintf("%q %d", payload, inside)
		}
		if got != want {
			t.Errorf("at %d is %s, want %s", offset, got, want)
		}
	}
}
