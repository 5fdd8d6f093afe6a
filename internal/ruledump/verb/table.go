package verb

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Table prints the list for people. Wide adds the endpoints themselves and the source ranges. Where the proxy counts, so
// are connections and bytes.
func (l *Services) Table(w io.Writer, wide bool, c Colours) error {
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	head := []string{"SERVICE PORT", "FRONTEND", "KIND", "POLICY", "ENDPOINTS", "AFFINITY", "SOURCES", "CHAIN"}
	counted := slices.ContainsFunc(l.Frontends, func(f Frontend) bool { return f.Count != nil })
	if counted {
		head = append(head, "CONNECTIONS", "BYTES")
	}
	if wide {
		head = append(head, "TO")
	}
	fmt.Fprintln(tab, strings.Join(head, "\t"))
	for i := range l.Frontends {
		fmt.Fprintln(tab, strings.Join(l.Frontends[i].row(counted, wide), "\t"))
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		line = strings.TrimRight(line, " ")
		switch {
		case i == 0:
			line = c.Bold(line)
		case l.Frontends[i-1].Unserved != "":
			line = c.Bad(line)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

func (f *Frontend) row(counted, wide bool) []string {
	row := []string{
		f.ServicePort(), f.Address + "/" + f.Protocol, f.Kind, orDash(f.Policy), f.count(), f.affinity(), f.sources(wide), orDash(f.Chain),
	}
	if counted {
		row = append(row, f.counts()...)
	}
	if wide {
		row = append(row, f.where())
	}
	return row
}

// counts returns connections and bytes.
func (f *Frontend) counts() []string {
	if f.Count == nil {
		return []string{"-", "-"}
	}
	return []string{fmt.Sprint(f.Connections), byteText(f.Bytes)}
}

// byteText prints a number of bytes with three digits or so: "512 B", "1.5 KiB", "320 GiB".
func byteText(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/(1<<10), 0
	for ; v >= 1000 && unit < len(units)-1; unit++ {
		v /= 1 << 10
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %s", v, units[unit])
	}
	return fmt.Sprintf("%.0f %s", v, units[unit])
}

var units = [...]string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// ServicePort returns "namespace/service:port".
func (f *Frontend) ServicePort() string {
	name := f.Namespace + "/" + f.Service
	if f.Port != "" {
		name += ":" + f.Port
	}
	return name
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// fates are the words for the fate of clients that are sent to no endpoint.
var fates = map[string]string{"reject": "refused", "drop": "dropped"}

func (f *Frontend) count() string {
	text := fmt.Sprint(len(f.Endpoints))
	if f.Policy == "Local" && f.Kind != "ClusterIP" {
		text = fmt.Sprintf("%d local of %d", len(f.LocalEndpoints), len(f.Endpoints))
	}
	if f.Unserved != "" {
		text += ", " + fates[f.Unserved]
	}
	return text
}

func (f *Frontend) affinity() string {
	if f.AffinitySeconds == 0 {
		return "-"
	}
	return shortDuration(time.Duration(f.AffinitySeconds) * time.Second)
}

// shortDuration prints a duration of whole seconds without the parts that are zero: "3h", "1h30m".
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (f *Frontend) sources(wide bool) string {
	switch {
	case f.Sources == nil:
		return "all"
	case len(f.Sources) == 1 || wide && len(f.Sources) > 0:
		var texts []string
		for _, p := range f.Sources {
			texts = append(texts, p.String())
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprintf("%d ranges", len(f.Sources))
}

// where lists the endpoints, each with its place if that is known.
func (f *Frontend) where() string {
	texts := addresses(f.Endpoints)
	if len(f.LocalEndpoints) > 0 {
		texts += "; local: " + addresses(f.LocalEndpoints)
	}
	return texts
}

func addresses(list []Endpoint) string {
	var texts []string
	for _, e := range list {
		text := e.Address.String()
		if e.Node != "" || e.Zone != "" {
			text += "@" + strings.Trim(e.Node+"/"+e.Zone, "/")
		}
		texts = append(texts, text)
	}
	return orDash(strings.Join(texts, ","))
}
