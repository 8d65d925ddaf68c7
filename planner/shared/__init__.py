"""What every room uses: records, documents, files and where they lie, remarks, notebooks."""
