package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nftproxy/nftproxy/internal/wholefile"
)

// exec runs ruledump in the proxy's pod with the streams of this process. If these are a terminal, ruledump gets one too.
func (s *session) exec(ctx context.Context, command []string) error {
	streams := remotecommand.StreamOptions{Stdout: os.Stdout, Stderr: os.Stderr}
	in, out := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	if term.IsTerminal(in) && term.IsTerminal(out) {
		before, err := term.MakeRaw(in) // the terminal in the pod handles Ctrl-C
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(in, before) }()
		streams.Stdin, streams.Stderr, streams.Tty = os.Stdin, nil, true
		if width, height, err := term.GetSize(out); err == nil {
			streams.TerminalSizeQueue = &oneSize{size: &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}, ctx: ctx}
		}
	}
	return s.stream(ctx, command, streams)
}

// oneSize tells the size that the terminal had at the beginning.
type oneSize struct {
	size *remotecommand.TerminalSize
	ctx  context.Context
}

// Next implements remotecommand.TerminalSizeQueue.
func (o *oneSize) Next() *remotecommand.TerminalSize {
	if size := o.size; size != nil {
		o.size = nil
		return size
	}
	<-o.ctx.Done()
	return nil
}

// stream runs ruledump in the proxy's pod, over a websocket, or over SPDY with servers and HTTP proxies that have no
// websockets.
func (s *session) stream(ctx context.Context, command []string, streams remotecommand.StreamOptions) error {
	request := s.client.Post().Resource("pods").Namespace(s.proxy.Namespace).Name(s.proxy.Name).SubResource("exec").
		Param("container", s.containerName()).Param("stdout", "true").Param("command", "ruledump")
	for _, arg := range command {
		request.Param("command", arg)
	}
	for name, wanted := range map[string]bool{"stdin": streams.Stdin != nil, "stderr": streams.Stderr != nil, "tty": streams.Tty} {
		if wanted {
			request.Param(name, "true")
		}
	}
	spdy, err := remotecommand.NewSPDYExecutor(s.config, http.MethodPost, request.URL())
	if err != nil {
		return err
	}
	websocket, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, request.URL().String())
	if err != nil {
		return err
	}
	either, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	return s.explainExec(either.StreamWithContext(ctx, streams))
}

// explainExec says what helps when exec failed. The exit status of ruledump is no failure.
func (s *session) explainExec(err error) error {
	var status *apierrors.StatusError
	switch {
	case err == nil || errors.As(err, new(exec.CodeExitError)):
		return err
	case apierrors.IsForbidden(err) || !errors.As(err, &status) && strings.Contains(err.Error(), "is forbidden"):
		return fmt.Errorf("%w\na Role in namespace %s needs the rule {apiGroups: [\"\"], resources: [pods/exec], verbs: [create, get]}", err, s.proxy.Namespace)
	case strings.Contains(err.Error(), "executable file not found"), strings.Contains(err.Error(), "no such file or directory"):
		return fmt.Errorf("pod %s has no ruledump: --selector and --container name nftproxy's pods: %w", s.proxy.Name, err)
	}
	return fmt.Errorf("exec in pod %s/%s: %w", s.proxy.Namespace, s.proxy.Name, err)
}

// containerName is that of the proxy's container.
func (s *session) containerName() string {
	containers := s.proxy.Spec.Containers
	if s.container != "" || len(containers) == 0 {
		return s.container
	}
	if at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "kube-proxy" }); at >= 0 {
		return containers[at].Name
	}
	return containers[0].Name
}

// logLines bounds the lines of the pod's log that are sent to a report, which keeps the last MiB.
const logLines = "10000"

// report writes a report to a file of this machine. Unless --log is given, it has the log of the proxy's pod.
func (s *session) report(ctx context.Context, command []string) error {
	output, command, err := takeOutput(command)
	if err != nil {
		return err
	}
	command = append(command, "--output=-")
	streams := remotecommand.StreamOptions{Stderr: os.Stderr}
	log := slices.IndexFunc(command, func(arg string) bool { return arg == "--log" || strings.HasPrefix(arg, "--log=") })
	switch {
	case log < 0:
		log, err := s.client.Get().Resource("pods").Namespace(s.proxy.Namespace).Name(s.proxy.Name).SubResource("log").
			Param("container", s.containerName()).Param("tailLines", logLines).Stream(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, "kubectl nftproxy: not in the report: the log:", explained(err, "get", "pods/log", s.proxy.Namespace))
		} else {
			defer log.Close()
			streams.Stdin, command = log, append(command, "--log=-")
		}
	case command[log] == "--log=-" || command[log] == "--log" && command[log+1] == "-":
		streams.Stdin = os.Stdin
	}
	if output == "-" {
		streams.Stdout = os.Stdout
		return s.stream(ctx, command, streams)
	}
	output = cmp.Or(output, fmt.Sprintf("nftproxy-%s-%s.tar.gz", s.proxy.Spec.NodeName, time.Now().UTC().Format("20060102T150405Z")))
	var whole bytes.Buffer // half a report helps nobody
	streams.Stdout = &whole
	if err := s.stream(ctx, command, streams); err != nil {
		return err
	}
	if err := wholefile.Write(output, whole.Bytes(), 0o600); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "kubectl nftproxy: wrote", output)
	return nil
}

// takeOutput takes -o FILE, or -oFILE, out of a command.
func takeOutput(command []string) (output string, rest []string, err error) {
	for i := 0; i < len(command); i++ {
		name, value, joined := strings.Cut(command[i], "=")
		if short, is := strings.CutPrefix(command[i], "-o"); is && short != "" {
			name, value, joined = "-o", strings.TrimPrefix(short, "="), true
		}
		switch {
		case name != "-o" && name != "--output":
			rest = append(rest, command[i])
			continue
		case !joined && i+1 == len(command):
			return "", nil, fmt.Errorf("%s needs a value", name)
		case !joined:
			i++
			value = command[i]
		}
		output = value
	}
	return output, rest, nil
}
