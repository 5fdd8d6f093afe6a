package introspect

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// flagsPage is the object Flagz of config.k8s.io.
type flagsPage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Flags             map[string]string `json:"flags,omitempty"`
}

// flagz shows the flags of the command line, given or not, with their values.
func flagz(flags *pflag.FlagSet) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveZPage(w, r, newFlagsPage(flags)) })
}

func newFlagsPage(flags *pflag.FlagSet) *flagsPage {
	page := &flagsPage{ObjectMeta: metav1.ObjectMeta{Name: component}, Flags: map[string]string{}}
	flags.VisitAll(func(f *pflag.Flag) {
		page.Flags[f.Name] = f.Value.String()
		if classified := f.Annotations["classified"]; len(classified) > 0 {
			page.Flags[f.Name] = "CLASSIFIED"
		}
	})
	return page
}

func (p *flagsPage) kind() string { return "Flagz" }

func (p *flagsPage) setVersion(apiVersion string) {
	p.TypeMeta = metav1.TypeMeta{Kind: p.kind(), APIVersion: apiVersion}
}

func (p *flagsPage) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.Flags)) {
		fmt.Fprintf(&b, "%s=%s\n", name, p.Flags[name])
	}
	return b.String()
}
