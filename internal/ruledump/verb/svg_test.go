package verb

import (
	"encoding/xml"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// drawnTexts returns the lines of text in a drawing, and checks that each fits into it.
func drawnTexts(t *testing.T, drawing string) (lines []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(drawing))
	width, height, y := 0.0, 0.0, 0.0
	inText := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			for _, a := range token.Attr {
				n, _ := strconv.ParseFloat(a.Value, 64)
				switch {
				case token.Name.Local == "svg" && a.Name.Local == "width":
					width = n
				case token.Name.Local == "svg" && a.Name.Local == "height":
					height = n
				case a.Name.Local == "y":
					y = n
				}
			}
			inText = token.Name.Local == "text"
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if !inText {
				continue
			}
			line := string(token)
			if right := svgLeft + svgPadding + float64(utf8.RuneCountInString(line))*svgCharacter; right > width || y > height {
				t.Errorf("%q at %v, %v is outside of %v x %v", line, right, y, width, height)
			}
			lines = append(lines, line)
		}
	}
}

// A drawing has all that the text says, whole and in its order.
func TestExplainDraws(t *testing.T) {
	squeeze := func(text string) string { return strings.Join(strings.Fields(text), "") }
	draws := func(t *testing.T, e *Explanation) {
		t.Helper()
		drawn := squeeze(strings.Join(drawnTexts(t, TextOf(e, "svg")), " "))
		for _, o := range e.Outcomes {
			for line := range strings.Lines(o.head + "\n" + o.Why + "\n" + o.steps.String()) {
				_, rest, found := strings.Cut(drawn, squeeze(line))
				if !found {
					t.Fatalf("no %q in\n%s", line, drawn)
				}
				drawn = rest
			}
		}
	}
	t.Run("the ways of golden flows", func(t *testing.T) {
		for _, name := range []string{"cluster-ip-spreads-over-all-endpoints", "source-ranges-drop-all-others", "hairpin-over-node-port"} {
			c := flows.FindCase(t, name)
			s, err := ruledump.FromManifests(c.ManifestsDir(t), ruledump.Compilation{Node: lab.NodeName, Config: c.ConfigFile(t)})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range c.Flows() {
				packet := evaluator.Packet{Protocol: 6, Source: netip.AddrPortFrom(f.From.Addr(f.To.Addr()), 0), Destination: f.To, Interface: "eth0"}
				if f.From == flows.FromNode {
					packet.Interface = ""
				}
				e, err := Explain(s, packet)
				if err != nil {
					t.Fatal(err)
				}
				draws(t, e)
			}
		}
	})
	t.Run("long names and other programs", func(t *testing.T) {
		long := strings.Repeat("chain-of-another-program<&>", 8)
		fw := &nft.Table{Family: nft.FamilyInet, Name: "fw", Kernel: &nft.KernelTable{Other: true}, Chains: []*nft.Chain{
			{Name: "f", Type: nft.TypeFilter, Hook: nft.HookForward, Rules: []nft.Rule{nft.NewRule(nft.Jump(long))}},
			{Name: long, Rules: []nft.Rule{nft.NewRule(nft.Drop)}},
		}}
		s := &ruledump.Snapshot{Ordered: []*nft.Table{fw}, NotLookedAt: []string{"iptables-legacy"}}
		e, err := Explain(s, evaluator.Packet{Protocol: 6, Source: netip.MustParseAddrPort("10.0.0.1:0"), Destination: netip.MustParseAddrPort("10.0.0.2:80")})
		if err != nil {
			t.Fatal(err)
		}
		draws(t, e)
		if svg := TextOf(e, "svg"); !strings.Contains(svg, `class="bad"`) || !strings.Contains(svg, "not looked at") {
			t.Errorf("no mark of what decided, or of what was not looked at:\n%s", svg)
		}
	})
}
