package nft

import (
	"errors"
	"strings"
	"testing"
)

func TestSetType(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  *Set
		want string // in the error; empty for none
	}{
		{"of fields that nft's userdata can name", &Set{Key: Concat{IPDaddr, MetaL4proto, ThDport, Numgen{Mod: 2}}, Data: Concat{IPDaddr, ThDport}}, ""},
		{"of ct state is refused", &Set{Key: Concat{CTState}}, "set ip table name: ct state cannot be part of a set's type"},
		{"of a part of conntrack's tuple is refused", &Set{Key: Concat{IPSaddr, CTOriginalIPDaddr}}, "ct original ip daddr cannot be part of a set's type"},
		{"of values of a fib type is refused", &Set{Key: Concat{IPSaddr}, Data: Concat{FibDaddrType}}, "map ip table name: fib daddr type cannot be part of a set's type"},
		{"of a hash is refused", &Set{Key: Concat{JHash{Field: IPSaddr, Mod: 2}}}, "jhash ip saddr mod 2 seed 0x0 cannot be part of a set's type"},
		{"of an unknown field is refused", &Set{Key: Concat{Field(200)}}, "field-200 cannot be part of a set's type"},
		{"of nothing is refused", &Set{}, "its keys have no type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.set.Name = "name"
			tx := Diff(nil, &Table{Family: FamilyIP, Name: "table", Sets: []*Set{tc.set}})
			_, err := tx.encode()
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("the error is %v, want an ErrInvalid with %q", err, tc.want)
			}
		})
	}
}
