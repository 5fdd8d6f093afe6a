package deploy

import (
	"testing"

	helmchart "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomize renders a directory.
func kustomize(t *testing.T, dir string) objects {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	if err := all.addDocuments(documents); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return all
}

// values are the values that an operator sets for the chart.
type values = map[string]any

// needed adds the values that the chart requires.
func needed(more values) values {
	return util.CoalesceTables(more, values{"apiServer": apiServer, "config": values{"clusterCIDR": podsRange}})
}

// chart renders the chart.
func chart(t *testing.T, v values) objects {
	t.Helper()
	all, err := renderChart(v)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func renderChart(v values) (objects, error) { return renderChartIn(v, engine.Render) }

// renderChartIn renders the chart with what the engine knows of a cluster.
func renderChartIn(v values, render func(helmchart.Charter, common.Values) (map[string]string, error)) (objects, error) {
	files, err := renderFiles(v, render)
	if err != nil {
		return nil, err
	}
	delete(files, notes)
	out := objects{}
	for _, documents := range files {
		if err := out.addDocuments([]byte(documents)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// notes is the file that helm prints after an installation.
const notes = "nftproxy/templates/NOTES.txt"

// renderFiles returns the text of each file in the chart's templates.
func renderFiles(v values, render func(helmchart.Charter, common.Values) (map[string]string, error)) (map[string]string, error) {
	loaded, err := loader.LoadDir("chart")
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: "release", Namespace: "kube-system", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, v, release, nil)
	if err != nil {
		return nil, err
	}
	return render(loaded, all)
}
