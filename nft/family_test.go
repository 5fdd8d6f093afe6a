package nft

import (
	"errors"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func TestFamily(t *testing.T) {
	numbers := map[Family]uint32{FamilyIP: unix.NFPROTO_IPV4, FamilyIP6: unix.NFPROTO_IPV6}
	for _, family := range Families {
		t.Run("the kernel's number of "+family.String()+" leads back to it", func(t *testing.T) {
			if got := uint32(family.nfproto()); got != numbers[family] {
				t.Errorf("number %d, want %d", got, numbers[family])
			}
			if got, err := familyOf(numbers[family]); err != nil || got != family {
				t.Errorf("number %d is family %s (%v)", numbers[family], got, err)
			}
		})
	}
	for name, number := range map[string]uint32{
		"unspecified": unix.NFPROTO_UNSPEC, "inet": unix.NFPROTO_INET, "a number whose low byte is that of ip": 0x100 | unix.NFPROTO_IPV4,
	} {
		t.Run("is not "+name, func(t *testing.T) {
			if got, err := familyOf(number); err == nil {
				t.Errorf("number %d is family %s", number, got)
			}
		})
	}
	inet := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	t.Run("of a table to write is checked", func(t *testing.T) {
		tx := Transaction{Steps: []Step{{Op: AddTable, Table: inet}}}
		if _, err := tx.encode(); !errors.Is(err, ErrInvalid) {
			t.Errorf("a table of family inet: %v, want ErrInvalid", err)
		}
	})
	t.Run("of a table that was read is checked", func(t *testing.T) {
		if table, err := decodeTable(start(inet.Family, "", 4)); err == nil {
			t.Errorf("a table of family inet is read as %s", table)
		}
		if _, err := decodeRule(start(inet.Family, "", 4)); err == nil {
			t.Error("a rule of family inet is read")
		}
	})
	t.Run("of a translation is that of the table", func(t *testing.T) {
		sets := func(string) *Set { return &Set{Name: "m", Key: Concat{IPDaddr}, Data: Concat{IPDaddr, ThDport}} }
		for number, want := range map[uint32]string{
			unix.NFPROTO_IPV4: "dnat ip to ip daddr map @m", unix.NFPROTO_IPV6: "unknown-nat", 0x100 | unix.NFPROTO_IPV4: "unknown-nat",
		} {
			var exprs []any
			expressions, _ := NewRule(DNAT{Family: FamilyIP, Key: Concat{IPDaddr}, Map: "m"}).linearize()
			for _, e := range expressions {
				if nat, ok := e.(*expr.NAT); ok {
					nat.Family = number
				}
				exprs = append(exprs, e)
			}
			if got := (Rule{Statements: delinearize(FamilyIP, sets, exprs)}).String(); got != want {
				t.Errorf("family %d reads as %q, want %q", number, got, want)
			}
		}
	})
}
