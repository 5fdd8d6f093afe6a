package apiserver

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nftproxy/nftproxy/model"
)

// Config says which API server to watch, how to talk to it, and on whose behalf. Except for
// NodeName every field may be left empty.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file. With neither Kubeconfig nor Master, the
	// service account of the pod that the process runs in is used.
	Kubeconfig string
	// Master overrides the server's address in the kubeconfig.
	Master string
	// ContentType is the encoding that requests are sent in and answers are asked for. Default
	// application/vnd.kubernetes.protobuf, several times cheaper to decode than JSON.
	ContentType string
	// AcceptContentTypes lists, in the form of an HTTP Accept header, the encodings that answers
	// may have. Default: ContentType, then JSON.
	AcceptContentTypes string
	// QPS and Burst limit the requests per second, on average and at once. Defaults 5 and 10, as in
	// a KubeProxyConfiguration. A negative QPS means no limit.
	QPS   float32
	Burst int
	// NodeName is the Node that the proxy runs on; no other Node is asked for.
	NodeName string
	// EveryNode asks for all Nodes; NodeName is empty then.
	EveryNode bool
	// Details passes on the annotations of Services (tracker.Options.Details).
	Details bool
	// ServiceProxyName is the value of the label service.kubernetes.io/service-proxy-name that
	// makes a Service this proxy's own. Default: the Services without that label.
	ServiceProxyName string
	// Guard decides about lists that lack most of what serves; nil is a guard of its own. With a ServiceProxyName a
	// list may be empty.
	Guard *model.ListGuard
	// OnFailing, if set, is told when a resource, named as in URLs ("services"), cannot be listed or
	// watched, and when it can again. A resource that the server does not have does not fail.
	// It may be called from several goroutines, and must not block.
	OnFailing func(resource string, failing bool)
}

// withDefaults returns the configuration with everything set that can be left empty.
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

// validate refuses names that the API server could only ever answer with an error.
func (c Config) validate() error {
	if c.NodeName == "" && !c.EveryNode {
		return errors.New("no node name given")
	}
	if problems := validation.IsValidLabelValue(c.ServiceProxyName); len(problems) > 0 {
		return fmt.Errorf("service proxy name %q: %s", c.ServiceProxyName, problems[0])
	}
	return nil
}
