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

// Options configures a client. The zero value follows the node with the host's name.
type Options struct {
	// Node is the name of the Node, an RFC 1123 subdomain of at most 253 bytes. Default: the host name in lower case,
	// like the kubelet's.
	Node string
	// TLS returns the TLS configuration for a target tcp://, such as TLSFiles.Client. It is called for
	// each connection; after an error the client tries again. It must be nil for unix://.
	TLS func() (*tls.Config, error)
	// Logger receives faults of the connection. The zero value is slog.Default(). To log nothing, use
	// logr.FromSlogHandler(slog.DiscardHandler).
	Logger logr.Logger
	// ServiceKeys selects labels and annotations of Services for ServicePorts: at most 16 valid keys of each.
	ServiceKeys model.ServiceKeys
	// OnConnected, if set, is called with true when the first batch of a stream has arrived, and with false when the
	// stream has ended with an error. A stream that the server ends for its age changes nothing. It must not block.
	OnConnected func(bool)
	// Limits bounds a batch of the server, and the state that increments add up to. A zero field means the value in
	// DefaultLimits.
	Limits Limits
	// OnSkip, if set, is called for each port that the client omits because of an unknown value, with the reason
	// (ErrUnknownValue). The client logs a reason once. OnSkip must not block.
	OnSkip func(error)
	// IgnoreExternalIPs omits the externalIPs of all Services, even if the server sends them (CVE-2020-8554).
	IgnoreExternalIPs bool
	// ServiceProxyName is the label service.kubernetes.io/service-proxy-name of the Services to serve; empty selects
	// the Services without the label. A client applies nothing from a server for another value (ErrServiceProxyName).
	// Servers older than the field Sync.service_proxy_name count as servers for the empty value.
	ServiceProxyName string
	// Guard decides about implausible full states; nil stands for a new guard. With a ServiceProxyName a full state may
	// be empty: a cluster may have no Service with the label.
	Guard *model.ListGuard
	// Loop configures the loop of Run. The default of its Logger is Logger.
	Loop model.LoopOptions
}

// Limits bounds the state that a server can send. A zero field means the value in DefaultLimits.
type Limits = protocol.Limits

// DefaultLimits has room for twenty times the Services and pods of Kubernetes' scale tests (10,000 and 150,000). A
// batch of this size takes about half a gigabyte of memory.
var DefaultLimits = protocol.DefaultLimits

var (
	// ErrLimit is logged, wrapped, when a server sends more than Limits allows.
	ErrLimit = protocol.ErrLimit
	// ErrUnknownValue is passed to Options.OnSkip, wrapped, for a port with an unknown protocol, IP family or policy.
	ErrUnknownValue = protocol.ErrUnknownValue
)

// ErrTarget is returned, wrapped, for an invalid target.
var ErrTarget = errors.New("not a target")

// ErrNode is returned, wrapped, for an invalid node name.
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
		// Pings find a server that is gone silently. A server accepts one every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithUserAgent("nftproxy-nodelocal"),
		// The addresses of a name are tried in random order, so that clients spread, and none tries one bad server for
		// ever.
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
