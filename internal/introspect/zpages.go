package introspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The pages /flagz and /statusz are those of k8s.io/apiserver/pkg/server, which is not used
// here: with it the kube-proxy command grows from 32 to 59 MB and takes 13 MB more memory when
// it starts, for these two pages.

// zpageGroup is the API group of the objects behind the pages.
const zpageGroup = "config.k8s.io"

// zpage is a page for people, and the object behind it for programs.
type zpage interface {
	kind() string
	// text is the page for people.
	text() string
	// setVersion makes it the object of an API version. All versions have the same fields.
	setVersion(apiVersion string)
}

// serveZPage writes the form of a new page that the client prefers: text, or with
// "application/json;as=<kind>;v=v1beta1;g=config.k8s.io" (or application/yaml, or v1alpha1) the object.
func serveZPage(w http.ResponseWriter, r *http.Request, page zpage) {
	form, ok := negotiate(r.Header, page.kind())
	switch {
	case !ok:
		writeNotAcceptable(w)
	case form.mediaType == mediaText:
		writeText(w, http.StatusOK, zpageHeader(page.kind())+page.text())
	default:
		form.pretty = form.pretty || r.URL.Query().Get("pretty") == "1"
		writeObject(w, page, form)
	}
}

func zpageHeader(kind string) string {
	return fmt.Sprintf("\n%s %s\nWarning: This page is for people. Its form may change; programs should ask for JSON.\n\n", component, strings.ToLower(kind))
}

func writeObject(w http.ResponseWriter, page zpage, f form) {
	page.setVersion(zpageGroup + "/" + f.version)
	if f.version == deprecatedVersion {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "%s of %s is deprecated; ask for %s"`, f.version, strings.ToLower(page.kind()), currentVersion))
	}
	w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", f.mediaType, zpageGroup, f.version, page.kind()))
	write(w, http.StatusOK, page, f)
}

// writeNotAcceptable says what there is, in the form in which an API server says that something failed.
func writeNotAcceptable(w http.ResponseWriter) {
	w.Header().Set("Content-Type", mediaJSON)
	write(w, http.StatusNotAcceptable, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  fmt.Sprintf("only the following media types are accepted: %s; for the first two, add ;as=KIND;v=%s;g=%s", strings.Join(mediaTypes, ", "), currentVersion, zpageGroup),
		Reason:   metav1.StatusReasonNotAcceptable,
		Code:     http.StatusNotAcceptable,
	}, form{mediaType: mediaJSON})
}

func write(w http.ResponseWriter, code int, object any, f form) {
	text, err := f.marshal(object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text) // whoever asked may be gone
}

func (f form) marshal(object any) (text []byte, err error) {
	switch {
	case f.mediaType == mediaYAML:
		return yaml.Marshal(object)
	case f.pretty:
		text, err = json.MarshalIndent(object, "", "  ")
	default:
		text, err = json.Marshal(object)
	}
	return append(text, '\n'), err
}
