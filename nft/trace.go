package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
)

// SetNftrace is "meta nftrace set 1": from here on the kernel notifies a Tracer of each rule that the packet matches.
var SetNftrace = Assign{MetaNftrace, Constant("\x01")}

// Limit holds for no more than Rate packets a second, and Burst packets at once.
type Limit struct {
	Rate, Burst uint32
	// Of is the unit of a rate that does not count packets per second, such as "bytes/hour"; empty otherwise. A rule with a unit
	// cannot be committed.
	Of string
	// Over makes the statement hold for packets beyond the rate.
	Over bool
}

// String returns the statement as nft lists it.
func (m Limit) String() string {
	over, rate, packets := "", "/second", " packets"
	if m.Over {
		over = "over "
	}
	if m.Of != "" {
		unit, isPackets := strings.CutPrefix(m.Of, "packets")
		if rate = unit; !isPackets {
			rate, packets = " "+m.Of, " bytes"
		}
	}
	return fmt.Sprintf("limit rate %s%d%s burst %d%s", over, m.Rate, rate, m.Burst, packets)
}

// limitUnits are nft's words for the time of a rate.
var limitUnits = map[expr.LimitTime]string{
	expr.LimitTimeSecond: "second", expr.LimitTimeMinute: "minute", expr.LimitTimeHour: "hour", expr.LimitTimeDay: "day", expr.LimitTimeWeek: "week",
}

func limitOf(e *expr.Limit) Limit {
	m := Limit{Rate: uint32(e.Rate), Burst: e.Burst, Over: e.Over}
	what := "packets"
	if e.Type == expr.LimitTypePktBytes {
		what = "bytes"
	}
	if m.Of = what + "/" + limitUnits[e.Unit]; m.Of == "packets/second" {
		m.Of = ""
	}
	return m
}

func (m Limit) linearize(l *linearizer) {
	if m.Of != "" {
		l.refuse(fmt.Errorf("%q cannot be written", m))
	}
	l.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(m.Rate), Unit: expr.LimitTimeSecond, Burst: m.Burst, Over: m.Over})
}
