package apiserver

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nftproxy/nftproxy/model"
)

// Config selects the API server, the credentials and the objects. Every field but NodeName may be empty.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file. Without Kubeconfig and Master, the Source uses the service account
	// of its pod.
	Kubeconfig string
	// Master overrides the server's address in the kubeconfig.
	Master string
	// ContentType is the encoding of requests and answers. Default application/vnd.kubernetes.protobuf, several times
	// cheaper to decode than JSON.
	ContentType string
	// AcceptContentTypes lists the encodings of answers, as an HTTP Accept header. Default: ContentType, then JSON.
	AcceptContentTypes string
	// QPS and Burst bound the requests per second, on average and at once. Defaults 5 and 10, as in a
	// KubeProxyConfiguration. A negative QPS means no limit.
	QPS   float32
	Burst int
	// NodeName is the Node that the proxy runs on; the Source watches no other Node.
	NodeName string
	// EveryNode makes the Source watch all Nodes; NodeName is then empty.
	EveryNode bool
	// Details passes on the annotations of Services (tracker.Options.Details).
	Details bool
	// ServiceProxyName selects the Services whose label service.kubernetes.io/service-proxy-name has this value.
	// Default: the Services without the label.
	ServiceProxyName string
	// Guard decides about implausible lists; nil stands for a new guard. With a ServiceProxyName a list may be empty.
	Guard *model.ListGuard
	// OnFailing, if set, is called with true when a resource, named as in URLs ("services"), cannot be listed or
	// watched, and with false when it can again. A resource that the server does not have does not fail. It may be
	// called from several goroutines, and must not block.
	OnFailing func(resource string, failing bool)
}

// withDefaults returns the configuration with all defaults.
func (c Config) withDefaults() Config {
	c.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	if c.AcceptContentTypes == "" {
		c.AcceptContentTypes = c.ContentType
		if c.ContentType != runtime.ContentTypeJSON {
			c.AcceptContentTypes += "," + runtime.ContentTypeJSON
		}
	}
	c.QPS, c.Burst = cmp.Or(c.QPS, 5), cmp.Or(c.Burst, 10)
	return c
}

// validate refuses names that the API server always refuses.
func (c Config) validate() error {
	if c.NodeName == "" && !c.EveryNode {
		return errors.New("no node name given")
	}
	if problems := validation.IsValidLabelValue(c.ServiceProxyName); len(problems) > 0 {
		return fmt.Errorf("service proxy name %q: %s", c.ServiceProxyName, problems[0])
	}
	return nil
}
