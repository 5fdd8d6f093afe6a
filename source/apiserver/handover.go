package apiserver

import (
	"k8s.io/client-go/tools/cache"
)

// handover passes an informer's events on to a sink.
func handover[T any](set func(T), remove func(namespace, name string)) cache.ResourceEventHandler {
	put := func(obj any) {
		if typed, ok := obj.(T); ok {
			set(typed)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, obj any) { put(obj) },
		DeleteFunc: func(obj any) {
			// A deletion that happened while the watch was broken comes as a
			// DeletedFinalStateUnknown, which has a key and perhaps an outdated object. The key
			// is all that is needed, and this function takes it from either.
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			if err != nil {
				return
			}
			if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
				remove(namespace, name)
			}
		},
	}
}

// byName adapts the deletion of an object that has no namespace.
func byName(remove func(name string)) func(namespace, name string) {
	return func(_, name string) { remove(name) }
}
