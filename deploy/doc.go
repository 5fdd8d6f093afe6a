// Package deploy tests what this directory holds for operators: the container image, the
// kustomize directories, the Helm chart, alerts and dashboard. It is a module of its own,
// so that what it takes to check them is no dependency of the program.
package deploy
