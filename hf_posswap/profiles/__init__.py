"""What a scheme alone does to attention, in numbers: no model is needed, and transformers is not imported.

Pictures (`report`) draw these numbers, measurements (`evaluation.decay`, `evaluation.properties`) state them.
"""
