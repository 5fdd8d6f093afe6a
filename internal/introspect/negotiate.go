package introspect

import (
	"net/http"
	"slices"
	"strings"

	"github.com/munnerz/goautoneg"
)

// The media types that a page comes in. Of equally good ones the client gets the first.
const (
	mediaJSON = "application/json"
	mediaYAML = "application/yaml"
	mediaText = "text/plain"
)

var mediaTypes = []string{mediaJSON, mediaYAML, mediaText}

// The versions of the objects (KEP-4827, KEP-4828).
const (
	currentVersion    = "v1beta1"
	deprecatedVersion = "v1alpha1"
)

// form is how a client wants a page.
type form struct {
	mediaType string
	// version is that of the object; empty for text.
	version string
	// pretty indents JSON.
	pretty bool
}

// negotiate picks the form that a client prefers of those that a page of a kind has; false if there is none.
// Without the header Accept that is text.
func negotiate(header http.Header, kind string) (form, bool) {
	accept := strings.Join(header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return form{mediaType: mediaText}, true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, mediaType := range mediaTypes {
			if !includes(clause, mediaType) {
				continue
			}
			if f, ok := formFor(mediaType, clause.Params, kind); ok {
				return f, true
			}
		}
	}
	return form{}, false
}

// includes reports whether a media type is one that a clause of Accept means.
func includes(clause goautoneg.Accept, mediaType string) bool {
	main, sub, _ := strings.Cut(mediaType, "/")
	switch {
	case clause.Type == "*":
		return clause.SubType == "*"
	case !strings.EqualFold(clause.Type, main):
		return false
	}
	return clause.SubType == "*" || strings.EqualFold(clause.SubType, sub)
}

// formFor is what a clause of Accept asks for. Objects must be asked for by kind, group and version, and text by none of these.
func formFor(mediaType string, parameters map[string]string, kind string) (form, bool) {
	f := form{mediaType: mediaType, version: parameters["v"], pretty: parameters["pretty"] == "1"}
	if parameters["stream"] != "" || parameters["sv"] != "" {
		return f, false
	}
	as, group := parameters["as"], parameters["g"]
	if mediaType == mediaText {
		return f, as == "" && group == "" && f.version == ""
	}
	return f, as == kind && group == zpageGroup && slices.Contains([]string{currentVersion, deprecatedVersion}, f.version)
}
