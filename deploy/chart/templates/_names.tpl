{{- define "nftproxy.labels" -}}
app.kubernetes.io/name: nftproxy
{{- end }}

{{- /* The labels of every object. The chart's own, by which others find the pods, cannot be changed. */ -}}
{{- define "nftproxy.objectLabels" -}}
{{ merge (include "nftproxy.labels" . | fromYaml) .Values.labels | toYaml }}
{{- end }}

{{- /* The account that may read Services: that of the program that watches the API server. */ -}}
{{- define "nftproxy.account" -}}
nftproxy{{ if .Values.nodeLocalServer.enabled }}-node-local-server{{ end }}
{{- end }}

{{- /* A kubeconfig for the account of a pod, given the API server's address. */ -}}
{{- define "nftproxy.kubeconfig" -}}
apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    server: {{ . }}
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
- name: default
  context:
    cluster: default
    user: default
current-context: default
{{- end }}

{{- define "nftproxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The port at the end of an address such as 0.0.0.0:10256. */ -}}
{{- define "nftproxy.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- /* The API server's address. The Service kubernetes works only once this program has run. The schema checks the rest. */ -}}
{{- define "nftproxy.apiServer" -}}
{{- $address := .Values.apiServer }}
{{- $service := lookup "v1" "Service" "default" "kubernetes" }}
{{- if has ((urlParse $address).hostname | trimAll "[]") ((dig "spec" "clusterIPs" list $service)) }}
{{- fail (printf "apiServer: %s is the ClusterIP of the Service kubernetes, which does not work before this program runs; set an address that works without Services" $address) }}
{{- end }}
{{- $address }}
{{- end }}

{{- /* What all containers have in common, given the image. */ -}}
{{- define "nftproxy.container" -}}
image: {{ .image }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
- name: kube-proxy
  mountPath: /var/lib/kube-proxy
  readOnly: true
- name: xtables-lock
  mountPath: /run/xtables.lock
  readOnly: true
{{- end }}
