package introspect

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	kubernetes "k8s.io/component-base/version"

	"github.com/nftproxy/nftproxy/internal/version"
)

// statusPage is the object Statusz of config.k8s.io.
type statusPage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion,omitempty"`
	// BinaryVersion is the version of the kube-proxy that this program stands for, and its own.
	BinaryVersion string `json:"binaryVersion"`
	// EmulationVersion is the minor version of the libraries: this proxy emulates no older one.
	EmulationVersion string   `json:"emulationVersion,omitempty"`
	Paths            []string `json:"paths"`
}

// statusz shows what runs, since when, and which other pages there are.
func statusz(pages []string) http.Handler {
	pages = slices.Compact(slices.Sorted(slices.Values(pages)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveZPage(w, r, newStatusPage(pages)) })
}

func newStatusPage(pages []string) *statusPage {
	start := legacyregistry.GetProcessStart()
	return &statusPage{
		ObjectMeta:       metav1.ObjectMeta{Name: component},
		StartTime:        metav1.NewTime(start),
		UptimeSeconds:    int64(time.Since(start).Seconds()),
		GoVersion:        runtime.Version(),
		BinaryVersion:    strings.TrimPrefix(version.Full(), "v"),
		EmulationVersion: kubernetes.DefaultKubeBinaryVersion,
		Paths:            pages,
	}
}

func (p *statusPage) kind() string { return "Statusz" }

func (p *statusPage) setVersion(apiVersion string) {
	p.TypeMeta = metav1.TypeMeta{Kind: p.kind(), APIVersion: apiVersion}
}

func (p *statusPage) text() string {
	return fmt.Sprintf("Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
		p.StartTime.Format(time.UnixDate), time.Duration(p.UptimeSeconds)*time.Second, p.GoVersion, p.BinaryVersion, p.EmulationVersion, strings.Join(p.Paths, " "))
}
