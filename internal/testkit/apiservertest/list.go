package apiservertest

import (
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// list answers with everything that matches now, which is "not older than" any version that the
// client may have asked for. A limit is ignored, as the API lets a server do.
func (s *Server) list(w http.ResponseWriter, r *http.Request, t target, options *metav1.ListOptions) error {
	match, err := selection(t, options)
	if err != nil {
		return err
	}
	if _, err := s.startVersion(options.ResourceVersion); err != nil {
		return err
	}
	found, version := s.store.snapshot(t.resource, match)
	list, err := t.resource.newList()
	if err != nil {
		return err
	}
	items := make([]runtime.Object, len(found))
	for i, obj := range found {
		items[i] = obj
	}
	if err := meta.SetList(list, items); err != nil {
		return err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	accessor.SetResourceVersion(formatVersion(version))
	writeObject(w, r, http.StatusOK, t.resource, list)
	return nil
}

// startVersion parses a resourceVersion; zero stands for "any".
func (s *Server) startVersion(text string) (uint64, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest("invalid resource version " + strconv.Quote(text))
	}
	if current, _ := s.store.versions(); version > current {
		return 0, errVersionInFuture(version, current)
	}
	return version, nil
}
