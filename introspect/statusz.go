package introspect

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/version"
)

const statuszKind = "Statusz"

// statusPage is the object Statusz of config.k8s.io/v1beta1. It has no emulationVersion:
// this proxy emulates no older one.
type statusPage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion,omitempty"`
	BinaryVersion     string      `json:"binaryVersion"`
	Paths             []string    `json:"paths"`
}

// statusz shows what runs, since when, and which other pages there are.
func statusz(pages []string) http.Handler {
	pages = slices.Compact(slices.Sorted(slices.Values(pages)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveZPage(w, r, statuszKind, newStatusPage(pages)) })
}

func newStatusPage(pages []string) *statusPage {
	start := legacyregistry.GetProcessStart()
	page := &statusPage{
		StartTime:     metav1.NewTime(start),
		UptimeSeconds: int64(time.Since(start).Seconds()),
		GoVersion:     version.Get().GoVersion,
		BinaryVersion: version.Get().GitVersion,
		Paths:         pages,
	}
	page.TypeMeta, page.ObjectMeta = zpageMeta(statuszKind)
	return page
}

func (p *statusPage) text() string {
	return fmt.Sprintf("Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\nPaths: %s\n",
		p.StartTime.Format(time.UnixDate), time.Duration(p.UptimeSeconds)*time.Second, p.GoVersion, p.BinaryVersion, strings.Join(p.Paths, " "))
}
