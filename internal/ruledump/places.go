package ruledump

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/source/apiserver"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// Place is the place of an endpoint, from its slice.
type Place struct {
	Node string `json:"node,omitempty"` // the name of the endpoint's node
	Zone string `json:"zone,omitempty"` // the name of the endpoint's zone
	// Pod: NAMESPACE/NAME of the endpoint's pod; absent if several pods have the address, as in the network of a host
	Pod string `json:"pod,omitempty"`
}

// severalPods stands for the pods of an address that several have.
const severalPods = "-"

// AddPlaces lists the EndpointSlices of a cluster once, and takes from them where endpoints are and which are not ready.
func (s *Snapshot) AddPlaces(ctx context.Context, kubeconfig string) error {
	settings, err := apiserver.RESTConfig(apiserver.Config{Kubeconfig: kubeconfig, QPS: -1})
	if err != nil {
		return err
	}
	collections, err := apiserver.NewCollections(settings, nil)
	if err != nil {
		return err
	}
	s.Places, s.Unready = map[netip.Addr]Place{}, map[string][]netip.AddrPort{}
	err = pager.New(collections.EndpointSlices.List).EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if slice, is := obj.(*discoveryv1.EndpointSlice); is {
			s.addSlice(slice)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	s.finishPlaces()
	return nil
}

// addPlacesOf takes the places of the endpoints of slices.
func (s *Snapshot) addPlacesOf(list []*discoveryv1.EndpointSlice) {
	s.Places, s.Unready = map[netip.Addr]Place{}, map[string][]netip.AddrPort{}
	for _, slice := range list {
		s.addSlice(slice)
	}
	s.finishPlaces()
}

func (s *Snapshot) addSlice(slice *discoveryv1.EndpointSlice) {
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		p := placeOf(e)
		for _, text := range e.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			if known := s.Places[addr]; known.Pod != "" && p.Pod != "" && known.Pod != p.Pod {
				p.Pod = severalPods
			}
			if p != (Place{}) {
				s.Places[addr] = p
			}
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				s.addUnready(slice, addr)
			}
		}
	}
}

func placeOf(e *discoveryv1.Endpoint) (p Place) {
	if e.NodeName != nil {
		p.Node = *e.NodeName
	}
	if e.Zone != nil {
		p.Zone = *e.Zone
	}
	if to := e.TargetRef; to != nil && to.Kind == "Pod" {
		p.Pod = to.Namespace + "/" + to.Name
	}
	return p
}

func (s *Snapshot) addUnready(slice *discoveryv1.EndpointSlice, addr netip.Addr) {
	for _, port := range slice.Ports {
		id := model.PortID{Namespace: slice.Namespace, Service: slice.Labels[discoveryv1.LabelServiceName]}
		if port.Name != nil {
			id.Port = *port.Name
		}
		if name := id.ServicePortName(); port.Port != nil && id.Service != "" {
			s.Unready[name] = append(s.Unready[name], netip.AddrPortFrom(addr, uint16(*port.Port)))
		}
	}
}

// finishPlaces leaves out the pods of addresses that several pods have, and sorts.
func (s *Snapshot) finishPlaces() {
	for addr, p := range s.Places {
		if p.Pod == severalPods {
			p.Pod = ""
			s.Places[addr] = p
		}
	}
	for name, list := range s.Unready {
		slices.SortFunc(list, netip.AddrPort.Compare)
		s.Unready[name] = slices.Compact(list)
	}
}
