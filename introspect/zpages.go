package introspect

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The pages /flagz and /statusz are those of k8s.io/apiserver/pkg/server, which is not used
// here: with it the kube-proxy command grows from 32 to 59 MB and takes 13 MB more memory when
// it starts, for these two pages.

// zpageVersion is the version of the pages' JSON.
var zpageVersion = metav1.GroupVersion{Group: "config.k8s.io", Version: "v1beta1"}

// zpage is a page for people, and for programs that ask for the object behind it.
type zpage interface {
	// text is the page for people.
	text() string
}

// serveZPage writes the text, or for a client that accepts
// "application/json;as=<kind>;v=v1beta1;g=config.k8s.io" the page as a JSON object.
func serveZPage(w http.ResponseWriter, r *http.Request, kind string, page zpage) {
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	for _, wanted := range strings.Split(accepted, ",") {
		mediaType, parameters, err := mime.ParseMediaType(wanted)
		switch {
		case mediaType == "text/plain" || mediaType == "text/*" || mediaType == "*/*" || strings.TrimSpace(accepted) == "":
			writeText(w, http.StatusOK, zpageHeader(kind)+page.text())
			return
		case err == nil && mediaType == "application/json" && parameters["as"] == kind &&
			parameters["g"] == zpageVersion.Group && parameters["v"] == zpageVersion.Version:
			writeObject(w, page)
			return
		}
	}
	writeText(w, http.StatusNotAcceptable, fmt.Sprintf("only text/plain and application/json;as=%s;v=%s;g=%s can be had\n", kind, zpageVersion.Version, zpageVersion.Group))
}

func zpageHeader(kind string) string {
	return fmt.Sprintf("\n%s %s\nWarning: This page is for people. Its form may change; programs should ask for JSON.\n\n", component, strings.ToLower(kind))
}

func writeObject(w http.ResponseWriter, page zpage) {
	text, err := json.Marshal(page)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(text, '\n')) // whoever asked may be gone
}

func zpageMeta(kind string) (metav1.TypeMeta, metav1.ObjectMeta) {
	return metav1.TypeMeta{Kind: kind, APIVersion: zpageVersion.String()}, metav1.ObjectMeta{Name: component}
}
