// Command kubectl-nftproxy is a plugin of kubectl: `kubectl nftproxy VERB …` runs `ruledump VERB …` in the proxy's pod on a
// node, and finds that node by the name of a pod.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/nftproxy/nftproxy/source/apiserver"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
)

const help = `kubectl nftproxy runs ruledump in the proxy's pod on a node of the cluster.

  kubectl nftproxy check                                what does not work, on which nodes, for whom, and why?
  kubectl nftproxy explain pod/CLIENT svc/NAME[:PORT]   where do its packets go, and why?
  kubectl nftproxy trace pod/CLIENT svc/NAME --yes      the same for real packets
  kubectl nftproxy services|connections|graph svc/NAME --node NODE
  kubectl nftproxy report --node NODE                   a file for a bug report, with the pod's log
  kubectl nftproxy VERB --node NODE                     any other verb of ruledump
  kubectl nftproxy VERB --help --node NODE              help of ruledump

pod/NAME and svc/NAME are in the namespace of -n, or of the kubeconfig; pod/NAMESPACE/NAME and
svc/NAMESPACE/NAME are in another. The node is that of the client pod, unless --node names one.
ruledump names pods and nodes, with the proxy's own access to the API server; --names=false
leaves names out. With trace, -n is the number of packets; --namespace is the namespace. What follows "--" goes to
ruledump as it is.

It needs the permission to get pods and services, to list pods in the proxy's namespace, and to
create and get pods/exec there; for report also to get pods/log.

Flags:
`

// options are the plugin's own flags.
type options struct {
	kubeconfig, context, namespace      string
	node, pod                           string
	proxyNamespace, selector, container string
}

// flag is one of the plugin's own flags.
type flag struct {
	name, usage string
	value       *string
}

func (o *options) flags() []flag {
	return []flag{
		{"kubeconfig", "kubeconfig file, as for kubectl", &o.kubeconfig},
		{"context", "context of the kubeconfig", &o.context},
		{"namespace", "namespace of pods and Services (-n); check, services, connections, graph and top show it alone", &o.namespace},
		{"node", "the node whose proxy to ask", &o.node},
		{"pod", "the proxy's pod, where a node has several", &o.pod},
		{"proxy-namespace", "namespace of the proxy's pods (default kube-system)", &o.proxyNamespace},
		{"selector", "labels of the proxy's pods (default k8s-app=kube-proxy)", &o.selector},
		{"container", "container of the proxy's pod (default kube-proxy, or the first)", &o.container},
	}
}

// parse takes the plugin's own flags out of the arguments, and returns the others: the command of ruledump.
func (o *options) parse(args []string) (command []string, err error) {
	verb := ""
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			return append(command, args...), nil
		}
		value, own, joined := o.find(arg, verb)
		switch {
		case own == nil:
			if verb == "" && !strings.HasPrefix(arg, "-") {
				verb = arg
			}
			command = append(command, arg)
			continue
		case !joined && len(args) == 0:
			return nil, fmt.Errorf("%s needs a value", arg)
		case !joined:
			value, args = args[0], args[1:]
		}
		*own = value
	}
	return command, nil
}

// find returns the variable of an own flag, and its value if that is in the same argument. The -n of trace is another flag.
func (o *options) find(arg, verb string) (value string, own *string, joined bool) {
	if short, is := strings.CutPrefix(arg, "-n"); is && verb != "trace" {
		return strings.TrimPrefix(short, "="), &o.namespace, short != ""
	}
	name, isLong := strings.CutPrefix(arg, "--")
	name, value, joined = strings.Cut(name, "=")
	for _, f := range o.flags() {
		if isLong && f.name == name {
			return value, f.value, joined
		}
	}
	return "", nil, false
}

func main() {
	klog.SetLogger(logr.Discard()) // client-go logs what the errors say, also faults of a connection that has done its work
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit exec.CodeExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		os.Exit(exit.Code)
	default:
		fmt.Fprintln(os.Stderr, "kubectl nftproxy:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	command, err := o.parse(args)
	if err != nil {
		return err
	}
	switch {
	case len(command) == 0 || slices.Contains([]string{"help", "-h", "--help"}, command[0]):
		fmt.Print(help)
		for _, f := range o.flags() {
			fmt.Printf("  --%-16s %s\n", f.name, f.usage)
		}
		return nil
	case command[0] == "--version":
		fmt.Println("kubectl-nftproxy", version.Own())
		return nil
	case strings.HasPrefix(command[0], "-"):
		return fmt.Errorf("%q is no verb of ruledump; kubectl nftproxy --help says more", command[0])
	}
	if err := refuseFiles(command); err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	if command, err = s.resolve(ctx, command); err != nil {
		return err
	}
	if command[0] == "check" && s.node == "" && s.pod == "" {
		return s.checkCluster(ctx, command)
	}
	if err := s.findProxy(ctx); err != nil {
		return err
	}
	if command[0] == "report" {
		return s.report(ctx, command)
	}
	return s.exec(ctx, withNames(command))
}

// refuseFiles refuses flags of ruledump that name files of this machine.
func refuseFiles(command []string) error {
	for _, arg := range command {
		name, _, _ := strings.Cut(arg, "=")
		if slices.Contains([]string{"--dump", "--manifests", "--config", "--node-local"}, name) {
			return fmt.Errorf("%s reads a file on this machine, and the command runs in the proxy's pod: use ruledump", name)
		}
	}
	return nil
}

// connect reads the kubeconfig. It does not talk to the server yet.
func (o *options) connect() (*session, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	kubeconfig := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := kubeconfig.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%w (--kubeconfig and --context say which cluster)", err)
	}
	namespace, _, err := kubeconfig.Namespace()
	if err != nil {
		return nil, err
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	s := &session{options: *o, config: config, inNamespace: cmp.Or(o.namespace, namespace)}
	s.proxyNamespace, s.selector = cmp.Or(o.proxyNamespace, "kube-system"), cmp.Or(o.selector, "k8s-app=kube-proxy")
	s.client, err = apiserver.Client(config, nil, corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{}, &corev1.Service{})
	return s, err
}
