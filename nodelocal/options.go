package nodelocal

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
)

// Options configures a client. The zero value follows the node that has the host's name.
type Options struct {
	// Node is the name of the Node, an RFC 1123 subdomain of at most 253 bytes. Default: the host name in lower case, as
	// the kubelet chooses it.
	Node string
	// TLS returns the TLS configuration for a target tcp://, such as TLSFiles.Client. It is called for
	// each connection; after an error the client tries again. It must be nil for unix://.
	TLS func() (*tls.Config, error)
	// Logger receives faults of the connection. The zero value is slog.Default(). To log nothing, use
	// logr.FromSlogHandler(slog.DiscardHandler).
	Logger logr.Logger
	// ServiceKeys selects the labels and annotations of Services that ServicePorts have: at most 16 of
	// each, each a key that Kubernetes would accept.
	ServiceKeys model.ServiceKeys
	// OnConnected, if set, is called with true when the first batch of a stream has arrived, and with false when the
	// stream has ended with an error. A stream that the server ends for its age changes nothing. It must not block.
	OnConnected func(bool)
	// Limits bounds a batch of the server, and the state that increments add up to. Zero fields are those of
	// DefaultLimits.
	Limits Limits
	// OnSkip, if set, is called each time a port is left out because this version of the client does not know a value in
	// it, with the reason (ErrUnknownValue). The client logs a reason once. It must not block.
	OnSkip func(error)
	// IgnoreExternalIPs leaves out the externalIPs of all Services, whatever the server sends (CVE-2020-8554).
	IgnoreExternalIPs bool
	// ServiceProxyName is the label service.kubernetes.io/service-proxy-name of the Services to serve; empty selects the
	// Services without the label. A client applies nothing of a server for another value (ErrServiceProxyName). Servers
	// older than the field Sync.service_proxy_name count as servers for the empty value.
	ServiceProxyName string
	// Guard decides about a full state of the server that lacks most of what serves; nil is a guard of its own. With a
	// ServiceProxyName such a state may be empty: a cluster may have no Service with the label.
	Guard *model.ListGuard
	// Loop configures the loop of Run. Its Logger is by default the one above.
	Loop model.LoopOptions
}

// Limits bounds what a server can make a client keep. A zero field is that of DefaultLimits.
type Limits = protocol.Limits

// DefaultLimits has room for twenty times the Services and the pods that Kubernetes is tested with (10,000 and
// 150,000). A batch that uses all of it takes about half a gigabyte of memory.
var DefaultLimits = protocol.DefaultLimits

var (
	// ErrLimit is logged, wrapped, when a server sends more than Limits allows.
	ErrLimit = protocol.ErrLimit
	// ErrUnknownValue is given to Options.OnSkip, wrapped, for a port with a protocol, an IP family or a policy that
	// this version of the API does not know.
	ErrUnknownValue = protocol.ErrUnknownValue
)

// ErrTarget is returned, wrapped, for a target that cannot be one.
var ErrTarget = errors.New("not a target")

// ErrNode is returned, wrapped, for a node name that Kubernetes would not accept.
var ErrNode = errors.New("not the name of a node")

// nodeName matches an RFC 1123 subdomain of any length.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// dial returns a connection, which connects when it is used.
func dial(target string, options *Options) (*grpc.ClientConn, error) {
	scheme, rest, _ := strings.Cut(target, "://")
	transport := insecure.NewCredentials()
	switch {
	case scheme == "unix" && strings.HasPrefix(rest, "/"):
		if options.TLS != nil {
			return nil, fmt.Errorf("%w: %q is a socket of this machine, TLS is for tcp://", ErrTarget, target)
		}
	case scheme == "tcp" && rest != "":
		if options.TLS == nil {
			return nil, fmt.Errorf("%w: %q needs TLS with a client certificate", ErrTarget, target)
		}
		config, err := options.TLS()
		if err != nil {
			return nil, err
		}
		transport, target = credentials.NewTLS(config), "dns:///"+rest
	default:
		return nil, fmt.Errorf("%w: %q is neither unix:///PATH nor tcp://HOST:PORT", ErrTarget, target)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(transport),
		// Pings find a server that is gone silently. A server refuses them more often than every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithUserAgent("nftproxy-nodelocal"),
		// Of several addresses of a name any may be the first, so that clients spread,
		// and none tries one bad server for ever.
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`),
	)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrTarget, target, err)
	}
	return conn, nil
}

func (o *Options) setDefaults() error {
	if o.Node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the node's name: %w; set Options.Node", err)
		}
		o.Node = strings.ToLower(name)
	}
	if len(o.Node) > 253 || !nodeName.MatchString(o.Node) {
		return fmt.Errorf("%w: %.300q: at most 253 characters, each a-z, 0-9, '-' or '.', with a letter or digit first and last", ErrNode, o.Node)
	}
	if err := protocol.CheckKeys(o.ServiceKeys); err != nil {
		return fmt.Errorf("Options.ServiceKeys: %w", err)
	}
	if o.Logger.IsZero() {
		o.Logger = logr.FromSlogHandler(slog.Default().Handler())
	}
	if o.Loop.Logger.IsZero() {
		o.Loop.Logger = o.Logger
	}
	return nil
}
