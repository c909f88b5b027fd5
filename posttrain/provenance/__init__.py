"""What a result was made from: digests, code slices, image ids, stage keys, manifests. Free of torch."""
