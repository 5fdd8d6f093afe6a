{{- define "nftproxy.labels" -}}
app.kubernetes.io/name: nftproxy
{{- end }}

{{- define "nftproxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The port at the end of an address such as 0.0.0.0:10256. */ -}}
{{- define "nftproxy.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- /* What both containers have in common. */ -}}
{{- define "nftproxy.container" -}}
image: {{ include "nftproxy.image" . }}
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
{{- end }}
