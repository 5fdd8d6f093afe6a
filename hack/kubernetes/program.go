package main

// program is a program of Kubernetes, or one that it needs.
type program struct {
	// name is the name of the file. pkg is the Go package.
	name, pkg string
	// test says that the program is the package's test.
	test bool
}

// programs are in the order in which they are built: what the most tests need comes first.
var programs = []program{
	{name: "kube-proxy", pkg: "k8s.io/kubernetes/cmd/kube-proxy"},
	{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
	{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"}, // the version of kube-apiserver's client
	{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl"},
	{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
	{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet"},
	{name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost"},
	{name: "regression-issue-74839", pkg: "k8s.io/kubernetes/test/images/regression-issue-74839"}, // a server of the e2e suite
	{name: "ginkgo", pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
	{name: "e2e.test", pkg: "k8s.io/kubernetes/test/e2e", test: true},
}

func names() (all []string) {
	for _, p := range programs {
		all = append(all, p.name)
	}
	return all
}
