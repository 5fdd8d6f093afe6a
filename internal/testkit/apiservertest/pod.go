package apiservertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Kubelet does for the server what kubelets do for a real one.
type Kubelet struct {
	// Exec runs a command in a pod and returns its exit status. An error is one of the container's runtime, such as a
	// program that is not there.
	Exec func(context.Context, *Command) (status int, err error)
	// Log returns the log of a pod.
	Log func(namespace, pod string) string
}

// Command is a command in a pod, with its streams, which are nil where the client wants none.
type Command struct {
	Namespace, Pod, Container string
	Args                      []string
	TTY                       bool
	Stdin                     io.Reader
	Stdout, Stderr            io.Writer
}

// SetKubelet makes the server answer for the subresources exec and log of pods. Refuse knows them as "pods/exec" and
// "pods/log".
func (s *Server) SetKubelet(k Kubelet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kubelet = k
}

// podPath is the path of a subresource of a pod.
type podPath struct{ namespace, name, subresource string }

func parsePodPath(path string) (p podPath) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) == 7 && parts[0] == "api" && parts[2] == "namespaces" && parts[4] == "pods" && (parts[6] == "exec" || parts[6] == "log") {
		p = podPath{parts[3], parts[5], parts[6]}
	}
	return p
}

// servePod answers for a subresource of a pod.
func (s *Server) servePod(w http.ResponseWriter, r *http.Request, of podPath) {
	pods, _ := resourceOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: of.namespace}})
	_, err := s.store.get(pods, of.namespace, of.name)
	s.mu.Lock()
	kubelet, refused := s.kubelet, s.refused["pods/"+of.subresource]
	s.mu.Unlock()
	if refused != 0 {
		err = errForbidden(&resource{pods.kind, "pods/" + of.subresource, true}, "create")
	}
	switch {
	case err != nil:
		status := statusOf(err)
		writeObject(w, r, int(status.Code), pods, status)
	case of.subresource == "log":
		fmt.Fprint(w, kubelet.Log(of.namespace, of.name))
	default:
		s.exec(w, r, of, kubelet.Exec)
	}
}

// exec runs a command with the streams of an upgraded request.
func (s *Server) exec(w http.ResponseWriter, r *http.Request, of podPath, run func(context.Context, *Command) (int, error)) {
	if wsstream.IsWebSocketRequest(r) && s.options.WithoutWebsockets {
		http.Error(w, "no websockets", http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	wants := func(stream string) bool { return query.Get(stream) == "true" }
	options := corev1.PodExecOptions{
		Container: query.Get("container"), Command: query["command"], TTY: wants("tty"),
		Stdin: wants("stdin"), Stdout: wants("stdout"), Stderr: wants("stderr"),
	}
	c := &Command{Namespace: of.namespace, Pod: of.name, Container: options.Container, Args: options.Command, TTY: options.TTY}
	open := c.openSPDY
	if wsstream.IsWebSocketRequest(r) {
		open = c.openWebsocket
	}
	conn, failure, err := open(w, r, &options)
	if err != nil {
		return // the client knows
	}
	defer conn.Close()
	code, err := run(r.Context(), c)
	_ = json.NewEncoder(failure).Encode(execStatus(code, err)) // a client that has gone needs none
}

// execStatus is the last that a client gets.
func execStatus(code int, err error) *metav1.Status {
	switch {
	case err != nil:
		return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: "error executing command in container: " + err.Error(), Code: http.StatusInternalServerError}
	case code == 0:
		return &metav1.Status{Status: metav1.StatusSuccess}
	}
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: fmt.Sprintf("command terminated with non-zero exit code: %d", code),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(code)}}},
	}
}

func (c *Command) openWebsocket(w http.ResponseWriter, r *http.Request, options *corev1.PodExecOptions) (io.Closer, io.Writer, error) {
	channel := func(wanted bool, kind wsstream.ChannelType) wsstream.ChannelType {
		if wanted {
			return kind
		}
		return wsstream.IgnoreChannel
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{
			channel(options.Stdin, wsstream.ReadChannel), channel(options.Stdout, wsstream.WriteChannel), channel(options.Stderr, wsstream.WriteChannel),
			wsstream.WriteChannel, wsstream.ReadChannel,
		}},
	})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return nil, nil, err
	}
	c.take(options, streams[remotecommand.StreamStdIn], streams[remotecommand.StreamStdOut], streams[remotecommand.StreamStdErr])
	return conn, streams[remotecommand.StreamErr], nil
}

func (c *Command) take(options *corev1.PodExecOptions, in io.Reader, out, errs io.Writer) {
	if options.Stdin {
		c.Stdin = in
	}
	if options.Stdout {
		c.Stdout = out
	}
	if options.Stderr {
		c.Stderr = errs
	}
}

func (c *Command) openSPDY(w http.ResponseWriter, r *http.Request, options *corev1.PodExecOptions) (io.Closer, io.Writer, error) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return nil, nil, err
	}
	wanted := 1 // the one for errors
	for _, stream := range []bool{options.Stdin, options.Stdout, options.Stderr, options.TTY} {
		if stream {
			wanted++
		}
	}
	var mu sync.Mutex
	streams, complete := map[string]httpstream.Stream{}, make(chan struct{})
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			mu.Lock()
			defer mu.Unlock()
			streams[stream.Headers().Get(corev1.StreamType)] = stream
			if len(streams) == wanted {
				close(complete)
			}
		}()
		return nil
	})
	if conn == nil {
		return nil, nil, errors.New("not upgraded")
	}
	select {
	case <-complete:
	case <-conn.CloseChan():
		return nil, nil, errors.New("the client has gone")
	}
	c.take(options, streams[corev1.StreamTypeStdin], streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr])
	return conn, streams[corev1.StreamTypeError], nil
}
