package apiservertest

import (
	"bytes"
	"mime"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	restwatch "k8s.io/client-go/rest/watch"
)

// negotiate returns the first encoding in the Accept header that the server speaks. With none it
// answers in JSON, as the real server does for "*/*".
func negotiate(r *http.Request) runtime.SerializerInfo {
	known := Codecs.SupportedMediaTypes()
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		mediaType, _, err := mime.ParseMediaType(accepted)
		if err != nil {
			continue
		}
		if info, ok := runtime.SerializerInfoForMediaType(known, mediaType); ok {
			return info
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(known, runtime.ContentTypeJSON)
	return info
}

// writeObject answers with one object (or list, or Status).
func writeObject(w http.ResponseWriter, r *http.Request, code int, res *resource, obj runtime.Object) {
	info := negotiate(r)
	var body bytes.Buffer
	if err := Codecs.EncoderForVersion(info.Serializer, res.kind.GroupVersion()).Encode(obj, &body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes()) // a client that went away is no error of the server's
}

// newEventEncoder starts a watch response and returns what writes its events.
func newEventEncoder(w http.ResponseWriter, r *http.Request, res *resource) *restwatch.Encoder {
	info := negotiate(r)
	contentType := info.MediaType
	if !info.StreamSerializer.EncodesAsText {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	frames := info.StreamSerializer.NewFrameWriter(w)
	return restwatch.NewEncoder(
		streaming.NewEncoder(frames, info.StreamSerializer.Serializer),
		Codecs.EncoderForVersion(info.Serializer, res.kind.GroupVersion()))
}

// decodeObject reads a request body in whatever encoding it says it has.
func decodeObject(body []byte, contentType string, res *resource) (Object, error) {
	info, ok := runtime.SerializerInfoForMediaType(Codecs.SupportedMediaTypes(), mediaTypeOf(contentType))
	if !ok {
		return nil, errUnsupportedMediaType(contentType)
	}
	into, err := res.newObject()
	if err != nil {
		return nil, err
	}
	if err := runtime.DecodeInto(Codecs.DecoderToVersion(info.Serializer, res.kind.GroupVersion()), body, into); err != nil {
		return nil, err
	}
	return into, nil
}

// mediaTypeOf strips parameters; a body without a type is JSON.
func mediaTypeOf(contentType string) string {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return runtime.ContentTypeJSON
	}
	return mediaType
}
