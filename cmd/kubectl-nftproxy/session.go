package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// session is one command in a cluster.
type session struct {
	options
	config *rest.Config
	client *rest.RESTClient
	// inNamespace is that of pods and Services without one.
	inNamespace string
	// proxy is the proxy's pod, once findProxy has found it.
	proxy *corev1.Pod
}

// perNamespace are the verbs that take -n.
var perNamespace = []string{"check", "services", "connections", "graph", "top"}

// namingVerbs are the verbs that print endpoints or clients, and name their pods.
var namingVerbs = []string{"services", "explain", "graph", "connections", "check"}

// withNames makes ruledump name pods and nodes, unless the command says whether it does.
func withNames(command []string) []string {
	says := func(arg string) bool { return arg == "--names" || strings.HasPrefix(arg, "--names=") }
	if !slices.Contains(namingVerbs, command[0]) || slices.ContainsFunc(command, says) || slices.Contains(command, "--help") {
		return command
	}
	return slices.Insert(slices.Clone(command), 1, "--names")
}

// resolve replaces the names of pods and Services in a command by what ruledump takes. Unless the node is given, it
// becomes that of the pod.
func (s *session) resolve(ctx context.Context, command []string) ([]string, error) {
	if verb := command[0]; verb == "explain" || verb == "trace" {
		return s.resolvePacket(ctx, command)
	}
	out, named := slices.Clone(command), false
	for i, arg := range out {
		switch kind, namespace, name := s.parseName(arg); kind {
		case "svc":
			out[i], named = namespace+"/"+name, true // it may be gone, and its connections not
		case "pod":
			pod, err := s.findClient(ctx, namespace, name)
			if err != nil {
				return nil, err
			}
			out[i] = pod.Status.PodIP
		}
	}
	if s.namespace != "" && !named && slices.Contains(perNamespace, command[0]) {
		out = append(out, "--namespace="+s.namespace)
	}
	return out, nil
}

// resolvePacket makes the flags --from and --to of two names or addresses.
func (s *session) resolvePacket(ctx context.Context, command []string) ([]string, error) {
	ends, out, positional, expected := map[string]string{}, command[:1:1], []string(nil), ""
	for _, arg := range command[1:] {
		flag, value, joined := strings.Cut(arg, "=")
		isEnd := flag == "--from" || flag == "--to"
		switch {
		case expected != "":
			ends[expected], expected = arg, ""
		case isEnd && joined:
			ends[flag] = value
		case isEnd:
			expected = flag
		case s.isEnd(arg):
			positional = append(positional, arg)
		default:
			out = append(out, arg)
		}
	}
	switch {
	case len(positional) == 1 && command[0] == "trace":
		ends["--to"] = positional[0]
	case len(positional) == 2:
		ends["--from"], ends["--to"] = positional[0], positional[1]
	case len(positional) > 0:
		return nil, fmt.Errorf("%s takes a client and a destination, such as pod/a svc/b:80", command[0])
	}
	var clients []corev1.PodIP
	if kind, namespace, name := s.parseName(ends["--from"]); kind == "pod" {
		pod, err := s.findClient(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		clients, ends["--from"] = pod.Status.PodIPs, pod.Status.PodIP
	}
	if kind, namespace, name := s.parseName(ends["--to"]); kind == "svc" {
		to, err := s.findService(ctx, namespace, name, clients)
		if err != nil {
			return nil, err
		}
		ends["--to"] = to.String()
		for _, ip := range clients {
			if addr, err := netip.ParseAddr(ip.IP); err == nil && addr.Is4() == to.at.Addr().Is4() {
				ends["--from"] = ip.IP
			}
		}
	}
	for _, flag := range []string{"--from", "--to"} {
		if ends[flag] != "" {
			out = append(out, flag+"="+ends[flag])
		}
	}
	return out, nil
}

// kinds are the kinds of names, as kubectl abbreviates them.
var kinds = map[string]string{"pod": "pod", "pods": "pod", "po": "pod", "svc": "svc", "service": "svc", "services": "svc"}

// parseName reads KIND/NAME or KIND/NAMESPACE/NAME. kind is empty for anything else.
func (s *session) parseName(text string) (kind, namespace, name string) {
	before, after, qualified := strings.Cut(text, "/")
	if kinds[before] == "" || !qualified || after == "" {
		return "", "", ""
	}
	if namespace, name, qualified = strings.Cut(after, "/"); !qualified {
		namespace, name = s.inNamespace, after
	}
	return kinds[before], namespace, name
}

// isEnd reports whether an argument is a name or an address, with or without a port and a protocol.
func (s *session) isEnd(arg string) bool {
	if kind, _, _ := s.parseName(arg); kind != "" {
		return true
	}
	address, _, _ := strings.Cut(arg, "/")
	_, withPort := netip.ParseAddrPort(address)
	_, alone := netip.ParseAddr(address)
	return withPort == nil || alone == nil
}

// findClient gets a pod that has an address, and takes its node.
func (s *session) findClient(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := s.getPod(ctx, namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no pod %s in namespace %s (-n names another)", name, namespace)
	case err != nil:
		return nil, explained(err, "get", "pods", namespace)
	case pod.Status.PodIP == "":
		return nil, fmt.Errorf("pod %s/%s has no address yet (phase %s)", namespace, name, pod.Status.Phase)
	}
	if s.node == "" {
		s.node = pod.Spec.NodeName
	}
	return pod, nil
}

func (s *session) getPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	var pod corev1.Pod
	return &pod, s.client.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&pod)
}

// dialed is an address and port that a client dials, with the protocol.
type dialed struct {
	at       netip.AddrPort
	protocol corev1.Protocol
}

// String is the value of --to.
func (d dialed) String() string { return d.at.String() + "/" + strings.ToLower(string(d.protocol)) }

// findService returns a ClusterIP of a Service, of an IP family that the clients have, with a port.
func (s *session) findService(ctx context.Context, namespace, text string, clients []corev1.PodIP) (to dialed, err error) {
	name, wanted, _ := strings.Cut(text, ":")
	var service corev1.Service
	err = s.client.Get().Namespace(namespace).Resource("services").Name(name).Do(ctx).Into(&service)
	switch {
	case apierrors.IsNotFound(err):
		return to, fmt.Errorf("there is no Service %s in namespace %s (-n names another)", name, namespace)
	case err != nil:
		return to, explained(err, "get", "services", namespace)
	}
	var names []string
	var found []corev1.ServicePort
	for _, p := range service.Spec.Ports {
		names = append(names, strings.TrimPrefix(fmt.Sprintf("%s:%d", p.Name, p.Port), ":"))
		if wanted == "" || wanted == p.Name || wanted == fmt.Sprint(p.Port) || strings.EqualFold(wanted, fmt.Sprintf("%d/%s", p.Port, p.Protocol)) {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		return to, fmt.Errorf("the Service %s/%s has the ports [%s]: name one, as in svc/%s:80", namespace, name, strings.Join(names, ", "), name)
	}
	families := map[bool]bool{}
	for _, ip := range clients {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			families[addr.Is4()] = true
		}
	}
	for _, ip := range service.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil && (len(families) == 0 || families[addr.Is4()]) {
			return dialed{netip.AddrPortFrom(addr, uint16(found[0].Port)), found[0].Protocol}, nil
		}
	}
	return to, fmt.Errorf("the Service %s/%s has no ClusterIP of the client's IP family (type %s, ClusterIPs %v)", namespace, name, service.Spec.Type, service.Spec.ClusterIPs)
}

// findProxy finds the proxy's pod on the node.
func (s *session) findProxy(ctx context.Context) error {
	if s.pod != "" {
		pod, err := s.getPod(ctx, s.proxyNamespace, s.pod)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no pod %s in namespace %s (--proxy-namespace names another)", s.pod, s.proxyNamespace)
		}
		s.proxy = pod
		return explained(err, "get", "pods", s.proxyNamespace)
	}
	found, err := s.listProxies(ctx)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("in namespace %s with labels %s", s.proxyNamespace, s.selector)
	switch {
	case len(found) == 1:
		s.proxy = &found[0]
		return nil
	case s.node == "" && len(found) > 1:
		return fmt.Errorf("%d nodes have a proxy: --node names the one to ask, and so does a client, such as pod/NAME", len(found))
	case len(found) == 0 && s.node == "":
		return fmt.Errorf("there is no running pod %s: --proxy-namespace and --selector name the proxy's", where)
	case len(found) == 0:
		return fmt.Errorf("node %s has no running pod %s: --proxy-namespace and --selector name the proxy's, --node another node", s.node, where)
	}
	var names []string
	for _, p := range found {
		names = append(names, p.Name)
	}
	return fmt.Errorf("node %s has several pods %s: --pod chooses one of %s", s.node, where, strings.Join(names, ", "))
}

// listProxies lists the running pods of the proxy: all of them, or those of the node.
func (s *session) listProxies(ctx context.Context) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: s.selector, FieldSelector: "status.phase=Running"}
	if s.node != "" {
		options.FieldSelector += ",spec.nodeName=" + s.node
	}
	var list corev1.PodList
	err := s.client.Get().Namespace(s.proxyNamespace).Resource("pods").VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(&list)
	if err != nil {
		return nil, explained(err, "list", "pods", s.proxyNamespace)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// explained adds to a refusal the rule of a Role that allows the request.
func explained(err error, verbs, resource, namespace string) error {
	if err == nil || !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w\na Role in namespace %s needs the rule {apiGroups: [\"\"], resources: [%s], verbs: [%s]}", err, namespace, resource, verbs)
}
