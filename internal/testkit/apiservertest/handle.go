package apiservertest

import (
	"context"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler) // ends the connection without an answer
	}
	defer s.handlers.Done()
	if !s.authentic(r) {
		status := statusOf(apierrors.NewUnauthorized("Unauthorized"))
		writeObject(w, r, int(status.Code), resources[0], status)
		return
	}
	if of := parsePodPath(r.URL.Path); of.subresource != "" {
		s.servePod(w, r, of)
		return
	}
	t, ok := parsePath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	options, err := listOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	verb := verbOf(r.Method, t, options)
	entry := s.log.add(verb, t.resource.plural, r)
	w = &answerRecorder{w, func(status int, contentType string) { s.log.answered(entry, status, contentType) }}
	s.wrap(t.resource, func(w http.ResponseWriter, r *http.Request) {
		options, err := listOptions(r) // Wrap may have changed them
		if err == nil {
			err = s.handle(w, r, verb, t, options)
		}
		if err != nil {
			status := statusOf(err)
			writeObject(w, r, int(status.Code), t.resource, status)
		}
	}).ServeHTTP(w, r)
}

func listOptions(r *http.Request) (*metav1.ListOptions, error) {
	var options metav1.ListOptions
	err := parameters.DecodeParameters(r.URL.Query(), schema.GroupVersion{Version: "v1"}, &options)
	return &options, err
}

// wrap puts what Wrap was given before the handler.
func (s *Server) wrap(r *resource, answer http.HandlerFunc) http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wrap := s.wrapped[r.plural]; wrap != nil {
		return wrap(answer)
	}
	return answer
}

// enter counts a request, unless the server was stopped: after Stop nobody is counted any more, so
// that the end of the test can wait for those who were.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return false
	}
	s.handlers.Add(1)
	return true
}

func verbOf(method string, t target, options *metav1.ListOptions) string {
	switch {
	case method == http.MethodGet && options.Watch:
		return "watch"
	case method == http.MethodGet && t.name == "":
		return "list"
	case method == http.MethodGet:
		return "get"
	case method == http.MethodPost:
		return "create"
	case method == http.MethodPut:
		return "update"
	case method == http.MethodDelete && t.name != "":
		return "delete"
	}
	return method
}

// handle answers, or returns the error to answer with.
func (s *Server) handle(w http.ResponseWriter, r *http.Request, verb string, t target, options *metav1.ListOptions) error {
	if err := s.awaitAnswer(r.Context(), t.resource); err != nil {
		return err
	}
	switch status := s.refusal(t.resource); status {
	case 0:
	case http.StatusNotFound: // without a Status object, as a server that never heard of the group
		http.NotFound(w, r)
		return nil
	case http.StatusForbidden:
		return errForbidden(t.resource, verb)
	default:
		return apierrors.NewGenericServerResponse(status, verb, t.resource.groupResource(), t.name, "refused", 0, true)
	}
	switch verb {
	case "list":
		return s.list(w, r, t, options)
	case "watch":
		return s.watch(w, r, t, options)
	case "get", "delete":
		return s.single(w, r, verb, t)
	case "create", "update":
		return s.write(w, r, verb, t)
	}
	return apierrors.NewMethodNotSupported(t.resource.groupResource(), verb)
}

// awaitAnswer waits while the resource hangs.
func (s *Server) awaitAnswer(ctx context.Context, r *resource) error {
	s.mu.Lock()
	answer := s.hanging[r.plural]
	s.mu.Unlock()
	if answer == nil {
		return nil
	}
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) refusal(r *resource) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused[r.plural]
}

func (s *Server) single(w http.ResponseWriter, r *http.Request, verb string, t target) error {
	act := s.store.get
	if verb == "delete" {
		act = s.store.remove
	}
	obj, err := act(t.resource, t.namespace, t.name)
	if err != nil {
		return err
	}
	writeObject(w, r, http.StatusOK, t.resource, obj)
	return nil
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, verb string, t target) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	obj, err := decodeObject(body, r.Header.Get("Content-Type"), t.resource)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if err := t.resource.checkNamespace(t.namespace); err != nil {
		return err
	}
	if obj.GetNamespace() == "" {
		obj.SetNamespace(t.namespace)
	}
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		current, _ := s.store.versions()
		obj.SetName(fmt.Sprintf("%s%05d", obj.GetGenerateName(), current))
	}
	if obj.GetNamespace() != t.namespace || (t.name != "" && obj.GetName() != t.name) || obj.GetName() == "" {
		return apierrors.NewBadRequest("the object's namespace and name do not match the URL")
	}
	act, code := s.store.create, http.StatusCreated
	if verb == "update" {
		act, code = s.store.update, http.StatusOK
	}
	stored, err := act(t.resource, obj)
	if err != nil {
		return err
	}
	writeObject(w, r, code, t.resource, stored)
	return nil
}
