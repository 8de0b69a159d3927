"""Which fork of Caffe has a field or a layer type that is unknown here? For error messages only.

Fields of forks that proto/caffe.proto declares are not here: they parse. What is here was seen in
public prototxts and in reports of people who could not read them.
"""

_SSD = "SSD (weiliu89/caffe, branch ssd)"
_PSPNET = "PSPNet (hszhao/PSPNet)"
_DEEPLAB = "DeepLab"
_SEGNET = "SegNet (alexgkendall/caffe-segnet)"
_FASTER = "Fast and Faster R-CNN (rbgirshick/caffe-fast-rcnn)"
_RFCN = "R-FCN"
_FLOWNET = "FlowNet 2 (lmb-freiburg/flownet2)"
_CTPN = "CTPN (tianzhi0549/CTPN)"
_CTC = "CTC (BVLC/caffe pull request 4681)"
_YOLO2 = "YOLO v2 (hustzxd/z1, gklz1982/caffe-yolov2)"
_YOLO3 = "MobileNet-YOLO (eric612/MobileNet-YOLO)"
_CRF_RNN = "CRF-RNN (torrvision/crfasrnn)"
_DILATION = f"{_DEEPLAB}; in Caffe it is `dilation`"

_FIELDS = {
    ("LayerParameter", "transpose_param"): _CTPN,
    ("LayerParameter", "reverse_param"): f"{_CTPN} or of {_CTC}",
    ("LayerParameter", "ctc_loss_param"): _CTC,
    ("LayerParameter", "ctc_decoder_param"): _CTC,
    ("LayerParameter", "lstm_param"): _CTPN,
    ("LayerParameter", "region_param"): _YOLO2,
    ("LayerParameter", "multi_stage_meanfield_param"): _CRF_RNN,
    ("LayerParameter", "cpm_transform_param"): "Convolutional Pose Machines (shihenw/caffe)",
    ("LayerParameter", "roi_alignment_param"): "AffordanceNet (nqanh/affordance-net)",
    ("LayerParameter", "resize_param"): "Appearance Flow (tinghuiz/appearance-flow)",
    ("LayerParameter", "mil_data_param"): "Visual Concepts (s-gupta/visual-concepts)",
    ("LayerParameter", "molgrid_data_param"): "gnina (gnina/gnina)",
    ("LayerParameter", "rand_cat_conv_param"): "PixelNet (kovibalu/saw_release)",
    ("PoolingParameter", "round_below"): "Iterative Error Feedback (pulkitag/ief)",
    ("FillerParameter", "alpha"): "happynear/caffe-windows",
    ("ConvolutionParameter", "hole"): _DILATION,
    ("ConvolutionParameter", "hole_h"): _DILATION,
    ("ConvolutionParameter", "hole_w"): _DILATION,
}

_TYPES_OF = {
    _SSD: "AnnotatedData DetectionEvaluate DetectionOutput MultiBoxLoss Normalize Permute PriorBox"
    " VideoData",
    _PSPNET: "AdaptiveBiasChannel BiasChannel DenseCRF DomainTransform Interp MatRead MatWrite"
    " SegAccuracy UniqueLabel",
    f"{_SEGNET} and of PSPNet": "BN",
    _SEGNET: "DenseImageData Upsample",
    _DEEPLAB: "ImageSegData IMAGE_SEG_DATA",
    _FASTER: "Proposal ROIPooling SmoothL1Loss",
    _RFCN: "BoxAnnotatorOHEM PSROIPooling SmoothL1LossOHEM SoftmaxWithLossOHEM",
    _FLOWNET: "Accum BlackAugmentation ChannelNorm Correlation CustomData DataAugmentation"
    " Downsample FLOReader FLOWriter FloatReader FloatWriter FlowWarp"
    " GenerateAugmentationParameters ImgReader ImgWriter L1Loss LpqLoss Mean Resample",
    _CTC: "CTCDecoder CTCLoss",
    "ParseNet (weiliu89/caffe, branch fcn)": "ParseEvaluate ParseOutput UnPooling",
    "gnina (gnina/gnina)": "MolGridData",
    "RCF (yun-liu/RCF)": "AutoCrop ImageLabelmapData",
    "Ravi-Garg/Unsupervised_Depth_Estimation": "Warping",
    _CTPN: "Lstm Reverse Transpose",
    _YOLO2: "Region Reorg",
    _YOLO3: "RegionLoss",
    _CRF_RNN: "MultiStageMeanfield MULTI_STAGE_MEANFIELD",
    "SENet (hujie-frank/SENet)": "Axpy",
    "ShuffleNet (farmingyard/ShuffleNet)": "ShuffleChannel",
    "MobileNet; a Convolution with `group` computes the same": "ConvolutionDepthwise"
    " DepthwiseConvolution",
    "MobileNet v2 (several have it)": "ReLU6",
    "Convolutional Pose Machines (shihenw/caffe)": "CPMData",
    "AffordanceNet (nqanh/affordance-net)": "ROIAlignment",
    "jimeiyang/objectContourDetector": "UNPOOLING",
}
_TYPES = {name: fork for fork, names in _TYPES_OF.items() for name in names.split()}


def fork_of_field(message: str, field: str) -> str | None:
    """The fork, in words, that has such a field in such a message; None where none is known."""
    if message == "V1LayerParameter":
        message = "LayerParameter"
    return _FIELDS.get((message, field))


def fork_of_type(name: str) -> str | None:
    """The fork, in words, that has such a layer type, or value of V1LayerParameter.LayerType."""
    return _TYPES.get(name)
